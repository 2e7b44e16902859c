/** One register function per room under test, in tests/ext/<room>.cpp. */
#pragma once

#include <nanobind/nanobind.h>
