// SPDX-License-Identifier: Apache-2.0
//
// Answers: their headers, errors, and access checks.

#include "server/http/answer.h"

#include "server/http/parts.h"
#include "server/http/token.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define UNAUTHORIZED 401
#define FORBIDDEN 403

void http_headers(struct evhttp_request *request, const char *type)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    evhttp_add_header(headers, "Content-Type", type);
    evhttp_add_header(headers, "Cache-Control", "no-store");
    evhttp_add_header(headers, "X-Content-Type-Options", "nosniff");
    evhttp_add_header(headers, "Referrer-Policy", "no-referrer");
    evhttp_add_header(headers, "Cross-Origin-Resource-Policy", "same-origin");
    evhttp_add_header(headers, "Cross-Origin-Opener-Policy", "same-origin");
    evhttp_add_header(headers, "Content-Security-Policy",
                      "default-src 'none'; connect-src 'self'; style-src 'self'; "
                      "script-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                      "frame-ancestors 'none'");
}

void http_answer_buffer(struct evhttp_request *request, int code, const char *type,
                        struct evbuffer *body)
{
    http_headers(request, type);
    if (evhttp_request_get_command(request) == EVHTTP_REQ_HEAD) {
        char size[24];
        snprintf(size, sizeof(size), "%zu", evbuffer_get_length(body));
        evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Length", size);
        evbuffer_drain(body, evbuffer_get_length(body));
    }
    evhttp_send_reply(request, code, NULL, body);
}

void http_answer(struct evhttp_request *request, int code, const char *type, const char *bytes,
                 size_t size)
{
    struct evbuffer *body = evbuffer_new();
    if (!body || evbuffer_add(body, bytes, size) < 0)
        evhttp_send_reply(request, HTTP_INTERNAL, NULL, NULL);
    else
        http_answer_buffer(request, code, type, body);
    if (body)
        evbuffer_free(body);
}

void http_answer_text(struct evhttp_request *request, int code, const char *text)
{
    http_answer(request, code, HTTP_TYPE_TEXT, text, strlen(text));
}

void http_answer_json(struct http_core *core, struct evhttp_request *request, int code)
{
    size_t size;
    const char *text = json_text(&core->json, &size);
    if (text)
        http_answer(request, code, HTTP_TYPE_JSON, text, size);
    else
        http_answer_text(request, HTTP_INTERNAL, "the answer is too large\n");
}

void http_answer_error(struct http_core *core, struct evhttp_request *request, int code,
                       const char *message)
{
    json_reset(&core->json);
    render_error(&core->json, code, message);
    http_answer_json(core, request, code);
}

const struct snapshot *http_look(struct http_core *core, struct evhttp_request *request)
{
    bool answered;
    const struct snapshot *snapshot = snapshot_read(core->config->board, &answered);
    if (!snapshot)
        http_answer_error(core, request, HTTP_SERVUNAVAIL, "the coordinator does not answer");
    return snapshot;
}

// ---- access checks ----------------------------------------------------------------------------

bool http_has_token(struct http_core *core, struct evhttp_request *request)
{
    static const char scheme[] = "Bearer ";
    if (!core->token)
        return true;
    const char *given =
        evhttp_find_header(evhttp_request_get_input_headers(request), "Authorization");
    return given && strncasecmp(given, scheme, sizeof(scheme) - 1) == 0 &&
           http_token_is(core->token, given + sizeof(scheme) - 1);
}

bool http_may_inspect(struct http_core *core, struct evhttp_request *request)
{
    if (core->token || !core->config->endpoint.exposed)
        return http_may_read(core, request);
    http_answer_error(core, request, FORBIDDEN,
                      "stacks, timelines and events are for loopback only; start the coordinator "
                      "with --http-token-file to have them here");
    return false;
}

bool http_may_read(struct http_core *core, struct evhttp_request *request)
{
    if (http_has_token(core, request))
        return true;
    evhttp_add_header(evhttp_request_get_output_headers(request), "WWW-Authenticate", "Bearer");
    http_answer_error(
        core, request, UNAUTHORIZED,
        "a token is needed: Authorization: Bearer, with what --http-token-file holds");
    return false;
}
