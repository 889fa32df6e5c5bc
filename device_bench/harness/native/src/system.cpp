#include "system.h"

#include <dirent.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "failure.h"

namespace harness {
namespace {

std::optional<std::string> read_line(const std::string& path) {
  std::ifstream stream(path);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

std::optional<std::int64_t> read_number(const std::string& path) {
  const auto line = read_line(path);
  if (!line) return std::nullopt;
  try {
    return std::stoll(*line);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  if (DIR* folder = ::opendir(path.c_str())) {
    while (const dirent* entry = ::readdir(folder)) {
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    ::closedir(folder);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::int64_t status_kb(const char* field) {
  std::ifstream stream("/proc/self/status");
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(field)) return std::stoll(line.substr(std::strlen(field))) * 1024;
  }
  return -1;
}

}  // namespace

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t timer_cost_ns() {
  constexpr int kBatch = 64, kBatches = 101;
  std::vector<std::int64_t> costs(kBatches);
  for (auto& cost : costs) {
    const auto start = now_ns();
    for (int i = 0; i < kBatch - 1; i++) {
      volatile auto ignored = now_ns();
      (void)ignored;
    }
    cost = (now_ns() - start) / kBatch;
  }
  std::nth_element(costs.begin(), costs.begin() + kBatches / 2, costs.end());
  return costs[kBatches / 2];
}

void set_affinity(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) throw Failure("job", "no CPU has number " + std::to_string(cpu));
    CPU_SET(static_cast<unsigned>(cpu), &set);
  }
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    throw Failure("job", std::string("cannot pin to the wanted CPUs: ") + std::strerror(errno));
  }
}

nlohmann::json cpu_facts() {
  nlohmann::json facts = nlohmann::json::object();
  utsname name{};
  ::uname(&name);
  facts["arch"] = name.machine;
  facts["kernel"] = name.release;
  facts["online"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  CPU_ZERO(&set);
  auto allowed = nlohmann::json::array();
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
      if (CPU_ISSET(cpu, &set)) allowed.push_back(cpu);
    }
  }
  facts["affinity"] = allowed;
  std::set<std::string> models, parts, features;
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const auto value = line.substr(colon + 2);
    if (line.starts_with("model name") || line.starts_with("Hardware")) models.insert(value);
    if (line.starts_with("CPU part")) parts.insert(value);
    if (line.starts_with("Features") || line.starts_with("flags")) {
      std::istringstream words(value);
      for (std::string word; words >> word;) features.insert(word);
    }
  }
  facts["models"] = models;
  facts["parts"] = parts;
  facts["features"] = features;
  return facts;
}

nlohmann::json conditions() {
  nlohmann::json found{{"load1", nullptr}, {"cpus", nlohmann::json::array()}, {"thermal", nlohmann::json::array()}};
  if (const auto line = read_line("/proc/loadavg")) {
    std::istringstream words(*line);
    double load = 0;
    if (words >> load) found["load1"] = load;
  }
  const std::string cpus = "/sys/devices/system/cpu/";
  for (const auto& name : list_folder(cpus)) {
    if (!name.starts_with("cpu") || name.find_first_not_of("0123456789", 3) != std::string::npos || name.size() == 3) {
      continue;
    }
    const auto folder = cpus + name + "/cpufreq/";
    const auto khz = read_number(folder + "scaling_cur_freq");
    if (!khz) continue;
    nlohmann::json cpu{{"id", std::stoi(name.substr(3))}, {"khz", *khz}, {"max_khz", nullptr}, {"governor", nullptr}};
    if (const auto max = read_number(folder + "cpuinfo_max_freq")) cpu["max_khz"] = *max;
    if (const auto governor = read_line(folder + "scaling_governor")) cpu["governor"] = *governor;
    found["cpus"].push_back(std::move(cpu));
  }
  const std::string thermal = "/sys/class/thermal/";
  for (const auto& name : list_folder(thermal)) {
    if (!name.starts_with("thermal_zone")) continue;
    const auto milli = read_number(thermal + name + "/temp");
    if (!milli) continue;
    found["thermal"].push_back({{"zone", name},
                                {"type", read_line(thermal + name + "/type").value_or("")},
                                {"celsius", static_cast<double>(*milli) / 1000.0}});
  }
  return found;
}

std::int64_t rss_bytes() { return status_kb("VmRSS:"); }

std::int64_t peak_rss_bytes() {
  // The kernel notes the peak late: it can lie below the present value.
  return std::max(status_kb("VmHWM:"), rss_bytes());
}

std::vector<std::pair<int, std::int64_t>> thread_times() {
  std::vector<std::pair<int, std::int64_t>> found;
  const std::string tasks = "/proc/self/task/";
  for (const auto& name : list_folder(tasks)) {
    // First field: time on a CPU, in ns (Documentation/scheduler/sched-stats.rst).
    if (const auto spent = read_number(tasks + name + "/schedstat")) found.emplace_back(std::stoi(name), *spent);
  }
  return found;
}

}  // namespace harness
