/* SPDX-License-Identifier: MIT */
/* Addresses, from and to Python. Python resolves names: here addresses are numeric. */

#include "cm/cm.h"
#include <arpa/inet.h>
#include <netdb.h>

int cqn_cm_sockaddr_from(PyObject *address, struct sockaddr_storage *out)
{
    const char *host;
    PyObject *port;
    uint64_t number;
    if (!PyTuple_Check(address)) {
        PyErr_Format(PyExc_TypeError, "address must be a tuple (address, port), not %s",
                     Py_TYPE(address)->tp_name);
        return -1;
    }
    if (!PyArg_ParseTuple(address, "sO;address must be a tuple (address, port)", &host, &port) ||
        cqn_uint(port, "port", UINT16_MAX, &number) < 0) {
        return -1;
    }
    memset(out, 0, sizeof(*out));
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)out;
    if (inet_pton(AF_INET, host, &ipv4->sin_addr) == 1) { /* the fast path */
        ipv4->sin_family = AF_INET;
        ipv4->sin_port = htons((uint16_t)number);
        return 0;
    }
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    const int err = getaddrinfo(host, NULL, &hints, &found);
    if (err != 0) {
        PyErr_Format(PyExc_ValueError, "%s is no numeric IP address: %s", host, gai_strerror(err));
        return -1;
    }
    memcpy(out, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    const uint16_t in_order = htons((uint16_t)number);
    if (out->ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)out)->sin6_port = in_order;
    }
    else {
        ((struct sockaddr_in *)out)->sin_port = in_order;
    }
    return 0;
}

static PyObject *address_tuple(const char *host, uint16_t port)
{
    return Py_BuildValue("si", host, ntohs(port));
}

/* getnameinfo() names the interface, which is part of an IPv6 address only. */
PyObject *cqn_cm_sockaddr_to(const struct sockaddr *address)
{
    char host[NI_MAXHOST];
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *ipv4 = (const struct sockaddr_in *)address;
        return address_tuple(inet_ntop(AF_INET, &ipv4->sin_addr, host, sizeof(host)),
                             ipv4->sin_port);
    }
    if (address->sa_family != AF_INET6) {
        Py_RETURN_NONE;
    }
    const int err = getnameinfo(address, sizeof(struct sockaddr_in6), host, sizeof(host), NULL, 0,
                                NI_NUMERICHOST);
    if (err != 0) {
        return PyErr_Format(PyExc_OSError, "getnameinfo(): %s", gai_strerror(err));
    }
    return address_tuple(host, ((const struct sockaddr_in6 *)address)->sin6_port);
}
