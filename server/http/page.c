// SPDX-License-Identifier: Apache-2.0
//
// The files of server/page/, which the assembler includes in the program. mk/build.mk lists them as
// dependencies of this object.

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

#define SCRIPT "text/javascript; charset=utf-8"

TAKE_IN(page_html, "server/page/index.html");
TAKE_IN(page_css, "server/page/page.css");
TAKE_IN(page_words, "server/page/words.js");
TAKE_IN(page_ask, "server/page/ask.js");
TAKE_IN(page_verdict, "server/page/verdict.js");
TAKE_IN(page_charts, "server/page/charts.js");
TAKE_IN(page_ranks, "server/page/ranks.js");
TAKE_IN(page_js, "server/page/page.js");

const struct page_file page_files[] = {
    {"/", "text/html; charset=utf-8", page_html, page_html_end},
    {"/page.css", "text/css; charset=utf-8", page_css, page_css_end},
    {"/words.js", SCRIPT, page_words, page_words_end},
    {"/ask.js", SCRIPT, page_ask, page_ask_end},
    {"/verdict.js", SCRIPT, page_verdict, page_verdict_end},
    {"/charts.js", SCRIPT, page_charts, page_charts_end},
    {"/ranks.js", SCRIPT, page_ranks, page_ranks_end},
    {"/page.js", SCRIPT, page_js, page_js_end},
    {NULL, NULL, NULL, NULL},
};
