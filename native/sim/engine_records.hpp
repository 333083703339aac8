// What the engine keeps of ranks, messages, cores and collectives while it replays a run.
#pragma once

#include <cstdint>
#include <vector>

#include "collective.hpp"
#include "model.hpp"
#include "units.hpp"

namespace nearmetal {

struct EngineRecords {
    enum class State : std::uint8_t { kComputing, kInCall, kWaiting, kProbing, kDone, kOff };
    enum class MessageKind : std::uint8_t { kEager, kRequest, kGrant, kData };
    // From kSending on the request is under way, and Slot::time is no time but what carries it.
    enum class SlotState : std::uint8_t { kFree, kReady, kDone, kSending, kPosted, kReceiving, kCollective };

    struct Place {
        std::uint32_t host = 0, domain = 0; // the machine with its port, and the node or virtual function on it
    };
    struct alignas(kLine) Message { // holds all that its transfer needs, so that no rank is touched before it arrives
        std::uint32_t next = kNone;
        std::uint32_t src = 0, dst = 0; // of the payload; a grant travels the other way
        std::int32_t tag = 0;
        std::uint32_t context = 0;
        MessageKind kind = MessageKind::kEager;
        PairClass pair = PairClass::kInter; // of its two ends, in either direction
        bool interrupts = false;            // it came while the receiver computed
        bool crosses = false;               // it left before a message of its receiver had reached its sender
        std::uint64_t bytes = 0;
        Ps time = 0; // when it left, and from then on when it became visible to the receiver
        std::uint32_t send_owner = 0, recv_owner = 0;
        Place from, to; // of src and dst
    };
    static_assert(sizeof(Message) == kLine);
    struct Receive {
        std::uint32_t next = kNone, owner = 0;
        std::int32_t src = kAny, tag = kAny; // src: world rank
        std::uint32_t context = 0;
    };
    struct Slot {
        Ps time = 0;                       // of a request under way: the number of its message or collective
        std::int64_t overhead_ps : 48 = 0; // of a ready receive: still to be paid
        SlotState state : 8 = SlotState::kFree;
        bool waited : 8 = false;
    };
    struct List {
        std::uint32_t head = kNone, tail = kNone;
    };
    struct alignas(kLine) Rank {
        // The first cache line holds all that most incoming messages need.
        Ps clock = 0, compute = 0;
        Ps compute_at_recv = 0; // what it had computed when it last received: its path has become cold since
        List posted, unexpected;
        std::uint32_t slot_base = 0, program = 0, left = 0, wait_set = kNone, pc = 0;
        State state = State::kComputing;
        std::uint8_t flows = 0;
        bool flow_overflow = false;
        bool posts = false; // its collective has more messages to send at once, each when the one before is out
        // The second holds what its own calls need.
        Ps tx_free = 0, compute_at_send = 0;
        Ps owed = 0; // work for what it has sent that is still to be done, unless it waits first
        Ps computes_until = 0; // when waiting: a wait may begin ahead of the global clock
        std::uint32_t draws = 0, loop_base = 0, comm_base = 0;
        Place place;
        List deferred;
        std::uint32_t deferred_contexts = kNone;
    };
    // A rank's state on the core that it shares; only where ranks outnumber cores.
    struct Share {
        std::uint32_t core = 0, next = kNone; // the core it has or had last
        std::uint32_t slow = 1, fast = 1;     // what it does takes slow / fast times as long as alone
        std::uint32_t division = kNone;       // of its computer's ranks, where that changes
        std::uint32_t dealt = 0, home = 0;    // the core that it was dealt to, and the one that it is to run on now
        std::uint32_t entity = kNone;         // where what was used decides who goes first
        std::uint32_t busy = 0;               // rounds of collectives that it is about to do
        Ps rest = 0;                          // compute time that is left
        Ps back_at = kNever;                  // when the switch to the core that it was given ends
        Ps polls_until = 0;                   // until then it has the core to itself
        Ps look_at = 0;                       // a time at which it looks for messages from outside its node
        bool unseen = false;                  // such messages came while it did not look
        Ps works_until = 0;                   // when what it has sent is there, where that is its processor's work
        State away = State::kComputing;       // what a rank in kOff was doing: kWaiting or kProbing
        bool queued = false;
    };
    static_assert(sizeof(Rank) == 2 * kLine);
    struct Copying { // what a process copies, out and in
        Ps rx_free = -1, free = 0;
    };
    struct Entity { // the ranks of one domain on one core, to a kernel that divides the core between those
        std::vector<std::uint32_t> ranks;
        double weight = 1.0;
        double used = 0.0; // time used of the core, over the weight
    };
    struct Division { // of a computer's ranks on its cores, and of each core between domains, at a time
        std::vector<std::uint32_t> ranks, domains{};
        std::uint32_t first_core = 0, first_entity = 0; // an entity for each domain, core by core
        std::uint32_t turn = kNone;
    };
    struct Core {
        std::uint32_t holder = kNone, group = 0;
        Ps slice_end = 0, free_at = 0;
        Ps counted = 0;                        // time whose use is known
        std::vector<std::uint32_t> entities{}; // that share it
    };
    struct CoreGroup { // cores that serve the same ranks, and the ranks that want one
        std::uint32_t first = 0, count = 0;
        List ready;
    };
    struct Flow {
        Ps arrival;
        std::uint32_t dst;
    };
    struct Way { // from one rank to another, where packets are acknowledged
        std::uint32_t open = 0; // messages that are not visible yet
        Ps seen = -1;           // when the last one became visible
    };
    static constexpr std::uint32_t kInlineFlows = 8;
    struct Port {
        Ps tx_free = 0, rx_free = -kLongest; // nothing has come through yet
        Ps rx_late = 0;                      // what the last message of several packets waited for others
    };
    struct SharedQueue {
        std::uint32_t used = 0, refused = 0; // refused: how many are to be sent again
        Ps refill_at = kNever, last_ready = 0;
    };
    struct Context { // a collective in progress on one rank
        std::uint32_t next = kNone, rank = 0, op = 0, outstanding = 0, seq = 0, slot = 0;
        Progress at;                   // the next round
        const Nodes *nodes = nullptr;  // of a collective that is divided by them
        std::uint64_t reduce_bytes = 0;
        Ps late_time = 0, late_cost = 0; // receives that the process has not seen yet
        Ps sent = 0;                     // when the last of this round's messages has left
        Algorithm algorithm = Algorithm::kDissemination;
        bool open = false; // the round before is
        bool closing = false;
        bool posting = false; // this round's messages are being posted
        bool granted = false; // the process has paid for the next round, whatever it does now
    };
    struct MeasuredCall { // of all ranks, in a collective that takes as long as it was measured to take
        std::uint32_t arrived = 0;
        Ps last = 0; // when the latest so far arrived
    };
};

} // namespace nearmetal
