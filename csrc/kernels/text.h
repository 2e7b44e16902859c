/** The kernel files of metal/, embedded at build time. */
#pragma once

#include <map>
#include <string>

namespace qwenmtp::kernels {

/** File name ("gdn.metal", "dialect.h") -> text. */
const std::map<std::string, std::string>& kernel_text();

} // namespace qwenmtp::kernels
