// SPDX-License-Identifier: Apache-2.0
//
// The checks of a configuration that need neither a coordinator nor a session. lockstep_open makes
// them, and lockstep_config_check makes them alone. The trainer's threads.

#include "worker/api/check.h"

#include "base/text.h"
#include "worker/control/local_address.h"
#include "worker/link/own_address.h"
#include "worker/session/drive.h"
#include "worker/session/gate.h"
#include "worker/support/config.h"
#include "worker/support/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int check_address(struct config *config)
{
    char error[LOCKSTEP_TEXT_BYTES];
    char wanted[LOCKSTEP_ADDRESS_BYTES];
    int status;
    if (config->transport == LOCKSTEP_TRANSPORT_LOOPBACK)
        return 0;
    if (config->advertise[0] != '\0') {
        text_copy(wanted, sizeof(wanted), config->advertise);
        return own_address_find(wanted, config->advertise, sizeof(config->advertise), error,
                                sizeof(error)) < 0
                   ? error_set(LOCKSTEP_E_CONFIG, "%s", error)
                   : 0;
    }
    status = control_local_address(config->coordinator, error, sizeof(error));
    if (status == 0 && !text_copy(config->advertise, sizeof(config->advertise), error))
        status = -1;
    if (status == -3)
        return error_set(LOCKSTEP_E_UNREACHABLE,
                         "coordinator %s: %s; check LOCKSTEP_COORDINATOR (config.coordinator)",
                         config->coordinator, error);
    if (status == -2)
        return error_set(LOCKSTEP_E_SYSTEM, "the coordinator %s cannot be looked up: %s",
                         config->coordinator, strerror_r(errno, error, sizeof(error)));
    if (status < 0)
        return error_set(LOCKSTEP_E_UNREACHABLE,
                         "no route to the coordinator %s: check its address, or set "
                         "LOCKSTEP_ADVERTISE to the address at which other workers reach this host",
                         config->coordinator);
    return 0;
}

int check_alone(struct config *config)
{
    const int status = config->advertise[0] != '\0' ? check_address(config) : 0;
    return status == 0 ? drive_check_processors(config) : status;
}

int lockstep_config_check(const struct lockstep_config *config)
{
    struct config *resolved;
    int status = session_check_sink();
    if (status < 0)
        return status;
    error_of(NULL);
    resolved = calloc(1, sizeof(*resolved));
    if (!resolved)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    status = config_resolve(config, resolved);
    if (status == 0)
        status = check_alone(resolved);
    free(resolved);
    return status;
}
