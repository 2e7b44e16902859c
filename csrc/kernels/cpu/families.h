/** The bodies of one instruction set, as cpu/table.cpp lists them. */
#pragma once

#include "kernels/cpu/body.h"

namespace qwenmtp::kernels::cpu::QWENMTP_ISA {

void rows(const RowsCall& call);
void embed(const EmbedCall& call);
void norm(const NormCall& call);
void hyper(const HyperCall& call);
void gdn(const GdnCall& call);
void moe(const MoeCall& call);
void qsa_prepare(const QsaPrepareCall& call);
void qsa_attend(const QsaAttendCall& call);
void ple(const PleCall& call);
void sample(const SampleCall& call);
void pick(const PickCall& call);

} // namespace qwenmtp::kernels::cpu::QWENMTP_ISA
