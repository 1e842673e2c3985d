// SPDX-License-Identifier: Apache-2.0
//
// Addresses of sockets; address.h has the contract.

#include "base/address.h"

#include <netinet/in.h>
#include <unistd.h>

bool address_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const void *)address;
        return ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    const struct sockaddr_in6 *six = (const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

const char *address_loopback(void)
{
    const struct sockaddr_in four = {.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int fd6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool has_four = fd >= 0 && bind(fd, (const struct sockaddr *)&four, sizeof(four)) == 0;
    const bool has_six = fd6 >= 0 && bind(fd6, (const struct sockaddr *)&six, sizeof(six)) == 0;
    if (fd >= 0)
        close(fd);
    if (fd6 >= 0)
        close(fd6);
    return !has_four && has_six ? "::1" : "127.0.0.1";
}
