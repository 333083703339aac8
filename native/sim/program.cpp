#include "program.hpp"

#include <algorithm>

namespace nearmetal {

namespace {

bool op_is_valid(const Program &p, const Op &op) {
    if (op.comm >= p.comms.size() || ((op.flags & kNonblocking) != 0 && op.slot >= p.slots) ||
        (op.flags & ~(kNonblocking | kSynchronous | kVector)) != 0 ||
        ((op.kind == OpKind::kWait || op.kind == OpKind::kCancel) && op.slots >= p.slot_sets.size()))
        return false;
    const auto known = [&](std::uint32_t list) { return list == kNone || list < p.size_lists.size(); };
    const bool grid = op.rule == Peer::kCart || op.recv_rule == Peer::kCart;
    return known(op.sizes) && known(op.recv_sizes) && (!grid || !p.dims.empty());
}

} // namespace

bool Program::seal() {
    partner.assign(code.size(), 0);
    level.assign(code.size(), 0);
    depth = 0;
    std::vector<std::uint32_t> open;
    for (std::uint32_t pc = 0; pc < code.size(); ++pc) {
        const std::uint32_t argument = code[pc] >> 2;
        switch (static_cast<Instr>(code[pc] & 3)) {
        case Instr::kOp:
            if (argument >= ops.size())
                return false;
            break;
        case Instr::kGap:
            if (argument >= gaps.size())
                return false;
            break;
        case Instr::kRepeat:
            if (argument == 0)
                return false;
            level[pc] = static_cast<std::uint32_t>(open.size());
            open.push_back(pc);
            depth = std::max(depth, static_cast<std::uint32_t>(open.size()));
            break;
        case Instr::kEnd:
            if (open.empty())
                return false;
            partner[pc] = open.back();
            partner[open.back()] = pc;
            level[pc] = level[open.back()];
            open.pop_back();
            break;
        }
    }
    const auto sound_set = [&](const std::vector<std::uint32_t> &set) {
        return std::all_of(set.begin(), set.end(), [&](std::uint32_t s) { return s < slots; });
    };
    return open.empty() && dims.size() == periods.size() &&
           std::all_of(ops.begin(), ops.end(), [&](const Op &op) { return op_is_valid(*this, op); }) &&
           std::all_of(slot_sets.begin(), slot_sets.end(), sound_set);
}

} // namespace nearmetal
