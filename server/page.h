// SPDX-License-Identifier: Apache-2.0
//
// The page at /: a table of the jobs and, for a chosen one, its workers, drawn in the browser from
// the JSON API. Nothing is fetched from anywhere else. A constant.

#ifndef LOCKSTEP_SERVER_PAGE_H
#define LOCKSTEP_SERVER_PAGE_H

extern const char *const page_parts[]; // One after the other, up to a NULL.

#endif
