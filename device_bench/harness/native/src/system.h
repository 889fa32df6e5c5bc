// Facts about the machine and this process, from /proc and /sys. What cannot be read is left out, never made up.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace harness {

// Nanoseconds of a clock that never steps back.
std::int64_t now_ns();

// What one reading of that clock costs, in ns: the median of many.
std::int64_t timer_cost_ns();

// Pin this process and the threads it will start to the given CPUs.
void set_affinity(const std::vector<int>& cpus);

// {"arch", "kernel", "online", "affinity", "cpuinfo": {model name, features, parts}}
nlohmann::json cpu_facts();

// {"load1", "cpus": [{"id", "khz", "max_khz", "governor"}], "thermal": [{"zone", "type", "celsius"}]}
nlohmann::json conditions();

// Peak and present resident memory in bytes (VmHWM, VmRSS of /proc/self/status); -1 when unknown.
std::int64_t peak_rss_bytes();
std::int64_t rss_bytes();

// Threads of this process and the time each has spent on a CPU, in ns. Empty when the kernel does not say.
std::vector<std::pair<int, std::int64_t>> thread_times();

}  // namespace harness
