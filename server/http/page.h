// SPDX-License-Identifier: Apache-2.0
//
// The files of the page, which are part of the program. The page asks only the API of the same
// server.

#ifndef LOCKSTEP_SERVER_HTTP_PAGE_H
#define LOCKSTEP_SERVER_HTTP_PAGE_H

struct page_file {
    const char *path; // NULL ends the list.
    const char *type;
    const char *bytes;
    const char *end;
};

extern const struct page_file page_files[];

#endif
