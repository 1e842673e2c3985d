// SPDX-License-Identifier: Apache-2.0
//
// Preloaded below every peer: their TCP sockets get cubic, as ours choose by themselves. bbr paces,
// which halves what loopback carries, and where it is the default of the kernel, namespaces may not
// choose another one for all. Sockets that are accepted inherit it from who listens.

#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
    static int (*real)(int, int, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "socket");
    int fd = real(domain, type, protocol);
    // Masks SOCK_CLOEXEC and SOCK_NONBLOCK. A socket that refuses the option stays as it was.
    if (fd >= 0 && (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    return fd;
}
