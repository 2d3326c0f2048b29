/* As much of libnvidia-ml.so.1 as sglang_ext/bench/machine asks for, answering from a text file that $NVML_STUB names.
 *
 * The file is read anew for each call, so a test changes what a GPU says by replacing it. A line is
 *     GPU FUNCTION ARGUMENT VALUES...
 * where GPU and ARGUMENT may be *; the last line that fits wins; VALUES of !N makes the function return error N. What no line
 * answers is not supported (3). Types and layouts are those of NVIDIA's nvml.h, written from nvidia-ml-py's own structures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
typedef void *Device;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, SMALL = 7, LONG = 4096 };

static int answer(int gpu, const char *name, int argument, char *out) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : 0;
    char line[LONG], who[32], what[128], with[32];
    int found = 0, at = 0;
    if (!file) return NOT_SUPPORTED;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%31s %127s %31s %n", who, what, with, &at) < 3 || strcmp(what, name)) continue;
        if ((strcmp(who, "*") && atoi(who) != gpu) || (strcmp(with, "*") && atoi(with) != argument)) continue;
        line[strcspn(line, "\n")] = 0;
        strcpy(out, line + at);
        found = 1;
    }
    fclose(file);
    if (!found) return NOT_SUPPORTED;
    return out[0] == '!' ? atoi(out + 1) : SUCCESS;
}

static int index_of(Device device) { return (int)(long)device - 1; }

static int numbers(Device device, const char *name, int argument, u64 *out, int wanted) {
    char text[LONG], *at = text;
    int code = answer(index_of(device), name, argument, text);
    for (int i = 0; code == SUCCESS && i < wanted; i++) out[i] = strtoull(at, &at, 0);
    return code;
}

#define UINT(name) \
    int name(Device d, unsigned *a) { u64 v = 0; int c = numbers(d, #name, 0, &v, 1); if (!c) *a = v; return c; }
#define UINT_OF(name) \
    int name(Device d, unsigned i, unsigned *a) { u64 v = 0; int c = numbers(d, #name, i, &v, 1); if (!c) *a = v; return c; }
#define ULONG(name) \
    int name(Device d, u64 *a) { return numbers(d, #name, 0, a, 1); }
#define PAIR(name) \
    int name(Device d, unsigned *a, unsigned *b) { \
        u64 v[2] = {0}; int c = numbers(d, #name, 0, v, 2); if (!c) { *a = v[0]; *b = v[1]; } return c; }
#define TEXT(name) \
    int name(Device d, char *a, unsigned n) { \
        char t[LONG]; int c = answer(index_of(d), #name, 0, t); if (!c) snprintf(a, n, "%s", t); return c; }

UINT(nvmlDeviceGetEnforcedPowerLimit)
UINT(nvmlDeviceGetPowerManagementLimit)
UINT(nvmlDeviceGetPowerManagementDefaultLimit)
UINT(nvmlDeviceGetPersistenceMode)
UINT(nvmlDeviceGetMaxPcieLinkGeneration)
UINT(nvmlDeviceGetMaxPcieLinkWidth)
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration)
UINT(nvmlDeviceGetCurrPcieLinkGeneration)
UINT(nvmlDeviceGetCurrPcieLinkWidth)
UINT(nvmlDeviceGetPowerUsage)
UINT(nvmlDeviceGetPerformanceState)
UINT(nvmlDeviceGetPcieReplayCounter)
UINT(nvmlDeviceGetNumaNodeId)
UINT_OF(nvmlDeviceGetClockInfo)
UINT_OF(nvmlDeviceGetMaxClockInfo)
UINT_OF(nvmlDeviceGetTemperature)
ULONG(nvmlDeviceGetTotalEnergyConsumption)
ULONG(nvmlDeviceGetCurrentClocksEventReasons)
ULONG(nvmlDeviceGetCurrentClocksThrottleReasons)
PAIR(nvmlDeviceGetPowerManagementLimitConstraints)
PAIR(nvmlDeviceGetEccMode)
PAIR(nvmlDeviceGetMigMode)
PAIR(nvmlDeviceGetGspFirmwareMode)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetVbiosVersion)

int nvmlDeviceGetGspFirmwareVersion(Device d, char *a) {
    char t[LONG];
    int c = answer(index_of(d), "nvmlDeviceGetGspFirmwareVersion", 0, t);
    if (!c) snprintf(a, 64, "%s", t);
    return c;
}

int nvmlInitWithFlags(unsigned flags) {
    char t[LONG];
    int c = answer(0, "nvmlInitWithFlags", (int)flags, t);
    return c == NOT_SUPPORTED ? SUCCESS : c;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "an error of the stub" : "Success"; }

int nvmlDeviceGetCount_v2(unsigned *a) {
    u64 v = 0;
    int c = numbers((Device)1, "nvmlDeviceGetCount", 0, &v, 1);
    *a = (unsigned)v;
    return c;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device *a) {
    char t[LONG];
    int c = answer((int)i, "nvmlDeviceGetHandleByIndex", 0, t);
    *a = (Device)(long)(i + 1);
    return c == NOT_SUPPORTED ? SUCCESS : c;
}
int nvmlSystemGetDriverVersion(char *a, unsigned n) {
    char t[LONG];
    int c = answer(0, "nvmlSystemGetDriverVersion", 0, t);
    if (!c) snprintf(a, n, "%s", t);
    return c;
}
int nvmlSystemGetCudaDriverVersion_v2(int *a) {
    u64 v = 0;
    int c = numbers((Device)1, "nvmlSystemGetCudaDriverVersion", 0, &v, 1);
    *a = (int)v;
    return c;
}

struct Utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(Device d, struct Utilization *a) {
    u64 v[2] = {0};
    int c = numbers(d, "nvmlDeviceGetUtilizationRates", 0, v, 2);
    if (!c) { a->gpu = (unsigned)v[0]; a->memory = (unsigned)v[1]; }
    return c;
}

struct Pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(Device d, struct Pci *a) {
    char t[LONG];
    int c = answer(index_of(d), "nvmlDeviceGetPciInfo", 0, t);
    if (!c) { memset(a, 0, sizeof *a); snprintf(a->bus_id, sizeof a->bus_id, "%s", t); }
    return c;
}

int nvmlDeviceGetTotalEccErrors(Device d, unsigned type, unsigned counter, u64 *a) {
    return counter ? INVALID : numbers(d, "nvmlDeviceGetTotalEccErrors", (int)type, a, 1);
}
int nvmlDeviceGetRemappedRows(Device d, unsigned *a, unsigned *b, unsigned *p, unsigned *f) {
    u64 v[4] = {0};
    int c = numbers(d, "nvmlDeviceGetRemappedRows", 0, v, 4);
    if (!c) { *a = v[0]; *b = v[1]; *p = v[2]; *f = v[3]; }
    return c;
}
struct Violation { u64 reference_us, violation_ns; };
int nvmlDeviceGetViolationStatus(Device d, unsigned policy, struct Violation *a) {
    a->reference_us = 1;
    return numbers(d, "nvmlDeviceGetViolationStatus", (int)policy, &a->violation_ns, 1);
}

/* Values are TYPE VALUE; type 1 is an unsigned int, which leaves the union's upper half as it finds it: full of ones. */
struct Field { unsigned id, scope; long long at, took; unsigned type, code; union { double d; unsigned u; u64 l; } value; };
int nvmlDeviceGetFieldValues(Device d, int n, struct Field *f) {
    char t[LONG];
    if (answer(index_of(d), "nvmlDeviceGetFieldValues", n > 1 ? -1 : -2, t) == INVALID) return INVALID;
    for (int i = 0; i < n; i++) {
        u64 v[2] = {0};
        f[i].code = numbers(d, "nvmlDeviceGetFieldValues", (int)f[i].id, v, 2);
        f[i].type = v[0];
        f[i].value.l = ~0ULL;
        if (v[0] == 0) f[i].value.d = (double)v[1];
        else if (v[0] == 1) f[i].value.u = v[1];
        else f[i].value.l = v[1];
    }
    return SUCCESS;
}

/* PID:BYTES ...; -1 bytes: not told. As the driver does, the first call only says how many there are. */
struct Process { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };
static int processes(Device d, const char *name, unsigned *count, struct Process *a) {
    char t[LONG], *save = 0;
    unsigned found = 0, room = *count;
    int c = answer(index_of(d), name, 0, t);
    if (c) return c;
    for (char *word = strtok_r(t, " ", &save); word; word = strtok_r(0, " ", &save), found++)
        if (a && found < room) {
            memset(&a[found], 0, sizeof *a);
            a[found].pid = (unsigned)atoi(word);
            a[found].memory = (u64)atoll(strchr(word, ':') + 1);
        }
    *count = found;
    return found > room ? SMALL : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *n, struct Process *a) {
    return processes(d, "nvmlDeviceGetComputeRunningProcesses", n, a);
}
int nvmlDeviceGetComputeRunningProcesses_v2(Device d, unsigned *n, struct Process *a) {
    return processes(d, "nvmlDeviceGetComputeRunningProcesses", n, a);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device d, unsigned *n, struct Process *a) {
    return processes(d, "nvmlDeviceGetMPSComputeRunningProcesses", n, a);
}

/* TOTAL RESERVED USED; the first version counts what is reserved as used. */
struct Memory { u64 total, free, used; };
struct Memory2 { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo(Device d, struct Memory *a) {
    u64 v[3] = {0};
    int c = numbers(d, "nvmlDeviceGetMemoryInfo", 0, v, 3);
    if (!c) { a->total = v[0]; a->used = v[1] + v[2]; a->free = v[0] - a->used; }
    return c;
}
int nvmlDeviceGetMemoryInfo_v2(Device d, struct Memory2 *a) {
    u64 v[3] = {0};
    int c = a->version == 0x02000028 ? numbers(d, "nvmlDeviceGetMemoryInfo", 0, v, 3) : INVALID;
    if (!c) { a->total = v[0]; a->reserved = v[1]; a->used = v[2]; a->free = v[0] - v[1] - v[2]; }
    return c;
}

int nvmlDeviceGetTopologyCommonAncestor(Device d, Device e, unsigned *a) {
    u64 v = 0;
    int c = numbers(d, "nvmlDeviceGetTopologyCommonAncestor", index_of(e), &v, 1);
    *a = (unsigned)v;
    return c;
}
int nvmlDeviceGetP2PStatus(Device d, Device e, unsigned capability, unsigned *a) {
    u64 v = 0;
    int c = e == d ? INVALID : numbers(d, "nvmlDeviceGetP2PStatus", (int)capability, &v, 1);
    *a = (unsigned)v;
    return c;
}
