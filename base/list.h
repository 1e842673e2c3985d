// SPDX-License-Identifier: Apache-2.0
// Intrusive doubly linked list: the links live inside the items, so linking allocates nothing and
// removing an item needs no search. The list does not own its items. Not synchronized.
//
//     struct job { struct list jobs; ... };
//     list_push_back(&server->jobs, &job->jobs);
//     list_for_each (node, &server->jobs)
//         visit(list_entry(node, struct job, jobs));
#ifndef LOCKSTEP_BASE_LIST_H
#define LOCKSTEP_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

// A head or a link. An empty head, and a link that is in no list, point at themselves.
struct list {
    struct list *next;
    struct list *previous;
};

// The item that holds this link.
#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

#define list_for_each(node, head) \
    for (struct list *node = (head)->next; node != (head); node = node->next)

// The body may remove node and free its item, but it may remove no other item.
#define list_for_each_safe(node, head) \
    for (struct list *node = (head)->next, *node##_next = node->next; node != (head); \
         node = node##_next, node##_next = node->next)

static inline void list_init(struct list *list)
{
    list->next = list;
    list->previous = list;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

// Inserts a link, which must be in no list, in front of place. If place is a head, the link becomes
// the last one.
static inline void list_insert_before(struct list *place, struct list *node)
{
    node->previous = place->previous;
    node->next = place;
    place->previous->next = node;
    place->previous = node;
}

static inline void list_push_back(struct list *head, struct list *node)
{
    list_insert_before(head, node);
}

static inline void list_push_front(struct list *head, struct list *node)
{
    list_insert_before(head->next, node);
}

// Removes a link from its list. Does nothing if the link is in no list.
static inline void list_remove(struct list *node)
{
    node->previous->next = node->next;
    node->next->previous = node->previous;
    list_init(node);
}

// Returns the first link, or NULL if the list is empty.
static inline struct list *list_first(const struct list *head)
{
    return list_empty(head) ? NULL : head->next;
}

// Removes and returns the first link. Returns NULL if the list is empty.
static inline struct list *list_pop_front(struct list *head)
{
    struct list *node = list_first(head);
    if (node)
        list_remove(node);
    return node;
}

#endif
