/* A stand-in for NVIDIA's management library, for machines without a GPU.
 *
 * What it answers stands in the folder named by FAKE_NVML:
 *
 *   gpus             a line per GPU: UUID, bytes of memory, name (which may have spaces)
 *   held/PID         a line per GPU that process PID holds memory of: index, bytes
 *   metrics/INDEX    what a GPU tells of its work, a line each; what has no line is not supported:
 *                      utilisation GPU% MEMORY%
 *                      pcie SENT RECEIVED (KB/s)        link GENERATION WIDTH
 *                      gpm NUMBER VALUE                 process PID SM% MEMORY%
 *   broken           if it is there, every question but the first fails
 *   broken.INDEX     if it is there, the questions about that GPU fail
 *
 * A file that says that something fails may hold the number of the error (nvml.h), else it is that
 * of a lost GPU. With an error of the library itself (999) a new nvmlInit fails too.
 * Processes that are gone hold nothing. Compiled against the real header, so the signatures and
 * structures are those of the real library.
 */
#include <dirent.h>
#include <nvml.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_GPUS = 16, MOST_TEXT = 128 };

struct gpu {
  char uuid[MOST_TEXT];
  char name[MOST_TEXT];
  unsigned long long memory;
};

static struct gpu gpus[MOST_GPUS];
static unsigned int gpu_count;

static void path_of(char *into, size_t size, const char *name) {
  snprintf(into, size, "%s/%s", getenv("FAKE_NVML"), name);
}

/* The error in a file; NVML_SUCCESS where there is no such file. */
static nvmlReturn_t error_in(const char *name) {
  char path[4096];
  int number = NVML_ERROR_GPU_IS_LOST;
  path_of(path, sizeof path, name);
  FILE *file = fopen(path, "r");
  if (!file) return NVML_SUCCESS;
  if (fscanf(file, "%d", &number) != 1) number = NVML_ERROR_GPU_IS_LOST;
  fclose(file);
  return (nvmlReturn_t)number;
}

static nvmlReturn_t error_of(nvmlDevice_t device) {
  char name[64];
  nvmlReturn_t all = error_in("broken");
  snprintf(name, sizeof name, "broken.%d", (int)((struct gpu *)device - gpus));
  return all != NVML_SUCCESS ? all : error_in(name);
}

nvmlReturn_t nvmlInit_v2(void) {
  char path[4096], line[512];
  if (!getenv("FAKE_NVML")) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (error_in("broken") == NVML_ERROR_UNKNOWN) return NVML_ERROR_UNKNOWN;
  path_of(path, sizeof path, "gpus");
  FILE *file = fopen(path, "r");
  if (!file) return NVML_ERROR_DRIVER_NOT_LOADED;
  gpu_count = 0;
  while (gpu_count < MOST_GPUS && fgets(line, sizeof line, file)) {
    struct gpu *one = &gpus[gpu_count];
    if (sscanf(line, "%127s %llu %127[^\n]", one->uuid, &one->memory, one->name) == 3) gpu_count++;
  }
  fclose(file);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t result) {
  return result == NVML_ERROR_GPU_IS_LOST ? "GPU is lost" : "fake error";
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
  *count = gpu_count;
  return error_in("broken");
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  if (index >= gpu_count) return NVML_ERROR_INVALID_ARGUMENT;
  *device = (nvmlDevice_t)&gpus[index];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  for (unsigned int i = 0; i < gpu_count; i++)
    if (strcmp(gpus[i].uuid, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2(i, device);
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  snprintf(uuid, length, "%s", ((struct gpu *)device)->uuid);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
  snprintf(name, length, "%s", ((struct gpu *)device)->name);
  return NVML_SUCCESS;
}

/* What process `pid` holds of a GPU, bytes; 0 if it is gone or holds none. */
static unsigned long long held_by(unsigned int pid, unsigned int gpu) {
  char path[4200], name[64];
  snprintf(name, sizeof name, "held/%u", pid);
  path_of(path, sizeof path, name);
  if (kill((pid_t)pid, 0) != 0) return 0;
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  unsigned int index;
  unsigned long long size, sum = 0;
  while (fscanf(file, "%u %llu", &index, &size) == 2)
    if (index == gpu) sum += size;
  fclose(file);
  return sum;
}

/* Calls back for every process that holds memory of a GPU; their number. */
static unsigned int each_process(unsigned int gpu, nvmlProcessInfo_t *into, unsigned int room,
                                 unsigned long long *total) {
  char path[4096];
  unsigned int found = 0;
  *total = 0;
  path_of(path, sizeof path, "held");
  DIR *folder = opendir(path);
  if (!folder) return 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    unsigned int pid = (unsigned int)strtoul(entry->d_name, NULL, 10);
    unsigned long long size = pid ? held_by(pid, gpu) : 0;
    if (!size) continue;
    *total += size;
    if (into && found < room) {
      memset(&into[found], 0, sizeof into[found]);
      into[found].pid = pid;
      into[found].usedGpuMemory = size;
    }
    found++;
  }
  closedir(folder);
  return found;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
  unsigned int gpu = (unsigned int)((struct gpu *)device - gpus);
  unsigned long long total;
  if (error_of(device) != NVML_SUCCESS) return error_of(device);
  unsigned int found = each_process(gpu, infos, *count, &total);
  nvmlReturn_t result = found > *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
  *count = found;
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  struct gpu *one = (struct gpu *)device;
  unsigned long long total;
  if (error_of(device) != NVML_SUCCESS) return error_of(device);
  each_process((unsigned int)(one - gpus), NULL, 0, &total);
  memory->total = one->memory;
  memory->used = total;
  memory->free = one->memory > total ? one->memory - total : 0;
  return NVML_SUCCESS;
}

/* Calls with the numbers of the lines of a GPU's metrics that begin with `name`, up to `room`. */
struct line {
  double values[3];
};

static unsigned int lines_of(nvmlDevice_t device, const char *name, struct line *into,
                             unsigned int room) {
  char path[4200], file_name[64], text[256], word[64];
  unsigned int found = 0;
  snprintf(file_name, sizeof file_name, "metrics/%u", (unsigned int)((struct gpu *)device - gpus));
  path_of(path, sizeof path, file_name);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  while (found < room && fgets(text, sizeof text, file)) {
    double *values = into[found].values;
    memset(values, 0, sizeof into[found].values);
    int parts = sscanf(text, "%63s %lf %lf %lf", word, &values[0], &values[1], &values[2]);
    if (parts > 1 && strcmp(word, name) == 0) found++;
  }
  fclose(file);
  return found;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
  struct line found;
  if (error_of(device) != NVML_SUCCESS) return error_of(device);
  if (!lines_of(device, "utilisation", &found, 1)) return NVML_ERROR_NOT_SUPPORTED;
  rates->gpu = (unsigned int)found.values[0];
  rates->memory = (unsigned int)found.values[1];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int *value) {
  struct line found;
  if (error_of(device) != NVML_SUCCESS) return error_of(device);
  if (!lines_of(device, "pcie", &found, 1)) return NVML_ERROR_NOT_SUPPORTED;
  *value = (unsigned int)found.values[counter];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation) {
  struct line found;
  if (!lines_of(device, "link", &found, 1)) return NVML_ERROR_NOT_SUPPORTED;
  *generation = (unsigned int)found.values[0];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *width) {
  struct line found;
  if (!lines_of(device, "link", &found, 1)) return NVML_ERROR_NOT_SUPPORTED;
  *width = (unsigned int)found.values[1];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
  struct line found[64];
  (void)since;
  if (error_of(device) != NVML_SUCCESS) return error_of(device);
  unsigned int number = lines_of(device, "process", found, 64);
  if (!number && !lines_of(device, "utilisation", found, 1)) return NVML_ERROR_NOT_SUPPORTED;
  if (!number) return NVML_ERROR_NOT_FOUND;
  if (!samples || *count < number) {
    *count = number;
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  for (unsigned int i = 0; i < number; i++) {
    memset(&samples[i], 0, sizeof samples[i]);
    samples[i].pid = (unsigned int)found[i].values[0];
    samples[i].smUtil = (unsigned int)found[i].values[1];
    samples[i].memUtil = (unsigned int)found[i].values[2];
    samples[i].timeStamp = i + 1;
  }
  *count = number;
  return NVML_SUCCESS;
}

/* A sample of the performance monitor remembers its GPU and how many were taken before. */
struct nvmlGpmSample_st {
  nvmlDevice_t device;
  unsigned int taken;
};

static unsigned int samples_taken;

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
  struct line found;
  support->isSupportedDevice = lines_of(device, "gpm", &found, 1) > 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
  *sample = calloc(1, sizeof **sample);
  return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
  free(sample);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
  if (error_of(device) != NVML_SUCCESS) return error_of(device);
  sample->device = device;
  sample->taken = ++samples_taken;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked) {
  struct line found[64];
  if (asked->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (!asked->sample1->taken || asked->sample1->taken >= asked->sample2->taken)
    return NVML_ERROR_INVALID_ARGUMENT; /* one is empty, or they are in the wrong order */
  unsigned int number = lines_of(asked->sample2->device, "gpm", found, 64);
  for (unsigned int i = 0; i < asked->numMetrics; i++) {
    asked->metrics[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int j = 0; j < number; j++)
      if ((unsigned int)found[j].values[0] == asked->metrics[i].metricId) {
        asked->metrics[i].nvmlReturn = NVML_SUCCESS;
        asked->metrics[i].value = found[j].values[1];
      }
  }
  return NVML_SUCCESS;
}
