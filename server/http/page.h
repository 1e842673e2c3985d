// SPDX-License-Identifier: Apache-2.0
//
// The page, as files that are part of the program. It asks the API of the same server and nobody
// else.

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
