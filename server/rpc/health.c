// SPDX-License-Identifier: Apache-2.0
//
// grpc.health.v1: the one request of a call, and its answers. Stream thread.

#include "server/rpc/health.h"

#include "server/rpc/call.h"
#include "server/rpc/parts.h"

#include "protos/codec/codec.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>

#include <string.h>

static void call_send_health(struct call *call, enum health health)
{
    uint8_t bytes[16];
    size_t size = 0;
    call->health = health;
    if (codec_encode_health_response((int)health, bytes, sizeof(bytes), &size) != CODEC_OK ||
        !rpc_call_queue(call, bytes, size))
        rpc_call_finish(call, RPC_INTERNAL, "the answer could not be encoded");
    rpc_call_pump(call);
}

static enum health server_readiness(const struct rpc_server *server)
{
    return server->serving ? HEALTH_SERVING : HEALTH_NOT_SERVING;
}

// Copies the service name out of a health request. Returns false if the request cannot be decoded.
static bool health_service(grpc_byte_buffer *payload, char *service, size_t capacity)
{
    grpc_byte_buffer_reader reader;
    service[0] = '\0';
    if (!payload || payload->data.raw.compression != GRPC_COMPRESS_NONE ||
        !grpc_byte_buffer_reader_init(&reader, payload))
        return false;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    enum codec_status status = codec_decode_health_request(
        GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice), service, capacity);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return status == CODEC_OK;
}

static enum health server_health(const struct rpc_server *server, const char *service)
{
    if (service[0] == '\0')
        return HEALTH_SERVING;
    return strcmp(service, server->config.service) == 0 ? server_readiness(server)
                                                        : HEALTH_NO_SERVICE;
}

static void call_check(struct call *call, const char *service)
{
    enum health health = server_health(call->server, service);
    if (health == HEALTH_NO_SERVICE) {
        rpc_call_finish(call, RPC_NOT_FOUND, "no such service");
        return;
    }
    call_send_health(call, health);
    rpc_call_finish(call, RPC_OK, "");
}

static void call_watch(struct call *call, const char *service)
{
    struct rpc_server *server = call->server;
    if (server->watch_count > RPC_MAX_WATCHES) {
        rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "too many health watches");
        return;
    }
    call->watches_service = strcmp(service, server->config.service) == 0;
    list_push_back(&server->watches, &call->watcher);
    call_send_health(call, server_health(server, service));
}

static void call_answer_health(struct call *call, grpc_byte_buffer *payload)
{
    char service[LOCKSTEP_NAME_BYTES];
    if (!health_service(payload, service, sizeof(service)))
        rpc_call_finish(call, RPC_INVALID_ARGUMENT, "not a HealthCheckRequest");
    else if (call->method == METHOD_CHECK)
        call_check(call, service);
    else
        call_watch(call, service);
}

// Takes ownership of the buffer.
void rpc_health_answer(struct call *call, grpc_byte_buffer *payload)
{
    call->asked = true;
    if (!call->finishing) {
        list_remove(&call->timer); // The call has sent its request, so it is not silent.
        call_answer_health(call, payload);
    }
    grpc_byte_buffer_destroy(payload);
}

// The queue of a watcher that does not read holds one answer, the latest.
void rpc_health_tell(struct rpc_server *server)
{
    list_for_each (node, &server->watches) {
        struct call *call = list_entry(node, struct call, watcher);
        if (call->watches_service && !call->dead && call->health != server_readiness(server)) {
            rpc_call_drop_queue(call);
            call_send_health(call, server_readiness(server));
        }
    }
}
