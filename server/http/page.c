// SPDX-License-Identifier: Apache-2.0
//
// The files of server/page/, taken in by the assembler; mk/build.mk knows that this object depends
// on them.

#include "server/http/page.h"

#include <stddef.h>

// clang-format off
#define TAKE_IN(name, path)                                                                       \
    __asm__(".pushsection .rodata\n"                                                              \
            ".hidden " #name ", " #name "_end\n"                                                  \
            ".globl " #name ", " #name "_end\n"                                                   \
            #name ":\n.incbin \"" path "\"\n" #name "_end:\n.byte 0\n"                            \
            ".popsection\n");                                                                     \
    extern const char name[];                                                                     \
    extern const char name##_end[]
// clang-format on

TAKE_IN(page_html, "server/page/index.html");
TAKE_IN(page_css, "server/page/page.css");
TAKE_IN(page_js, "server/page/page.js");

const struct page_file page_files[] = {
    {"/", "text/html; charset=utf-8", page_html, page_html_end},
    {"/page.css", "text/css; charset=utf-8", page_css, page_css_end},
    {"/page.js", "text/javascript; charset=utf-8", page_js, page_js_end},
    {NULL, NULL, NULL, NULL},
};
