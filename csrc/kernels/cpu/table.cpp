/** The table of bodies of one instruction set. */
#include "kernels/cpu/families.h"

#define QWENMTP_TEXT(name) #name
#define QWENMTP_TEXT_OF(name) QWENMTP_TEXT(name)

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

extern const Bodies kBodies;
const Bodies kBodies = {
    .isa = QWENMTP_TEXT_OF(QWENMTP_ISA),
    .rows = rows,
    .embed = embed,
    .norm = norm,
    .hyper = hyper,
    .gdn = gdn,
    .moe = moe,
    .qsa_prepare = qsa_prepare,
    .qsa_attend = qsa_attend,
    .ple = ple,
    .sample = sample,
    .pick = pick,
};

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
