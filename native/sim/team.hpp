// The threads of a simulation, one of which belongs to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace nearmetal {

// Shared by the threads of a simulation: the first failure stops them all.
class Team {
  public:
    explicit Team(Budget budget) : budget_(std::move(budget)) {}

    // What a thread of the team checks; the one that belongs to Python also checks for signals.
    [[nodiscard]] Budget budget(bool of_python) {
        Budget own = budget_;
        own.look = [this, of_python] {
            if (of_python)
                check_signals();
            if (stopped_)
                throw Stop{};
        };
        return own;
    }

    // Run `work` on this thread and on helpers; throw what the first of them threw.
    template <typename Work> void run(std::uint32_t threads, Work work) {
        const auto guarded = [&](bool of_python) {
            try {
                work(budget(of_python));
            } catch (...) {
                fail(std::current_exception());
            }
        };
        std::vector<std::jthread> helpers;
        for (std::uint32_t t = 1; t < threads; ++t) {
            ++running_;
            helpers.emplace_back([&] {
                guarded(false);
                const std::lock_guard lock(mutex_);
                --running_;
                ended_.notify_one();
            });
        }
        guarded(true);
        wait_for_helpers();
        helpers.clear();
        if (failure_)
            std::rethrow_exception(failure_);
    }

  private:
    struct Stop {};

    static void check_signals() {
        const nanobind::gil_scoped_acquire held;
        if (PyErr_CheckSignals() != 0)
            throw nanobind::python_error();
    }

    void fail(std::exception_ptr failure) {
        const std::lock_guard lock(mutex_);
        if (!stopped_)
            failure_ = std::move(failure);
        stopped_ = true;
    }

    void wait_for_helpers() {
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, std::chrono::milliseconds(50), [this] { return running_ == 0; })) {
            lock.unlock();
            try {
                check_signals();
            } catch (...) {
                fail(std::current_exception());
            }
            lock.lock();
        }
    }

    Budget budget_;
    std::mutex mutex_;
    std::condition_variable ended_;
    std::atomic<bool> stopped_{false};
    std::uint32_t running_ = 0;
    std::exception_ptr failure_;
};

} // namespace nearmetal
