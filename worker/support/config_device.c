// SPDX-License-Identifier: Apache-2.0
// See config_device.h. Runs on the thread that opens the session.

#include "worker/support/config_device.h"

#include "base/parse.h"
#include "worker/support/config.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <string.h>

#define DEVICE_MOST 9999 // Largest number of a device that is accepted.
#define DEVICE_DIGITS 4 // Digits of DEVICE_MOST.

bool config_device_next(const char **rest, uint64_t *number)
{
    char digits[DEVICE_DIGITS + 1];
    const size_t length = strcspn(*rest, ",");
    if (length >= sizeof(digits))
        return false;
    memcpy(digits, *rest, length);
    digits[length] = '\0';
    *rest += length + ((*rest)[length] == ',' && (*rest)[length + 1] != '\0');
    return parse_u64(digits, number) && *number <= DEVICE_MOST;
}

// Returns the number of devices in a list such as "0,1"; 0 if the list is not valid. Then *twice is
// a device that occurs twice, or -1.
static uint32_t device_count(const char *list, int64_t *twice)
{
    uint64_t numbers[LOCKSTEP_MAX_OWN_DEVICES];
    uint32_t count = 0;
    *twice = -1;
    do {
        if (count == LOCKSTEP_MAX_OWN_DEVICES || !config_device_next(&list, &numbers[count]))
            return 0;
        for (uint32_t i = 0; i < count; i++) {
            if (numbers[i] == numbers[count])
                *twice = (int64_t)numbers[i];
        }
        count++;
    } while (*list != '\0' && *twice < 0);
    return *twice < 0 ? count : 0;
}

static bool device_is_valid(const char *device, int64_t *twice)
{
    *twice = -1;
    return strcmp(device, "none") == 0 || strcmp(device, "auto") == 0 ||
           (strncmp(device, CONFIG_DEVICE_KIND, strlen(CONFIG_DEVICE_KIND)) == 0 &&
            strlen(device) < CONFIG_DEVICE_BYTES &&
            device_count(device + strlen(CONFIG_DEVICE_KIND), twice) > 0);
}

int config_device(const struct lockstep_config *given, struct config *config)
{
    const char *device = config_environment("LOCKSTEP_DEVICE");
    int64_t twice;
    if (!device)
        device = !given->device ? "auto" : given->device;
    if (!device_is_valid(device, &twice) && twice >= 0)
        return error_set(LOCKSTEP_E_CONFIG,
                         "the device (LOCKSTEP_DEVICE, config.device) '%s' names cuda:%" PRId64
                         " twice",
                         device, twice);
    if (!device_is_valid(device, &twice))
        return error_set(LOCKSTEP_E_CONFIG,
                         "the device (LOCKSTEP_DEVICE, config.device) '%s' is not none, auto or "
                         "cuda:N, such as cuda:0, or of several, at most %d, cuda:0,1",
                         device, LOCKSTEP_MAX_OWN_DEVICES);
    return config_string(config->device, sizeof(config->device), device,
                         "the device (LOCKSTEP_DEVICE, config.device)");
}
