/** Precompiled once: the one heavy header that most rooms share. */
#pragma once

#include <mlx/mlx.h>
