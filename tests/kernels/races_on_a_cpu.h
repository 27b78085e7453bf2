// Finds lanes that use the same byte of shared memory without having met between: compiled with -fsanitize=thread, but
// without its library, every access calls one of the functions at the end first. A byte may be written by many lanes as
// long as they all write the same; only __syncwarp and __syncthreads order accesses, as on a GPU.

struct Users {  // of a byte
    unsigned block_round, warp_round;  // when they used it
    unsigned readers, writers;  // warps since the block met
    unsigned warp, lane_readers, lane_writers;  // lanes of the last of them since that warp met
    int changed_by;  // lane
};
static Users* users;  // of every byte, while a kernel runs
static unsigned block_rounds, warp_rounds[LANES];  // meetings
static struct {
    size_t at;
    int size, lane;
    Byte before[16];
} written;  // last; what is there now has to be compared

static UNCHECKED Users& users_of(size_t at) {
    const unsigned lane = threadIdx.x, warp = lane / 32;
    Users& x = users[at];
    if (x.block_round != block_rounds) x = Users{block_rounds, 0, 0, 0, warp, 0, 0, -1};
    if (x.warp != warp || x.warp_round != warp_rounds[lane])
        x.warp = warp, x.warp_round = warp_rounds[lane], x.lane_readers = x.lane_writers = 0;
    return x;
}

static UNCHECKED void compare_written() {
    const unsigned lane = threadIdx.x, now = written.lane;
    threadIdx.x = now;
    for (int i = 0; i < written.size; i++) {
        Users& x = users_of(written.at + i);
        const unsigned warps = 1u << now / 32, lanes = 1u << now % 32;
        if (shared[written.at + i] != written.before[i]) {
            if ((x.readers | x.writers) & ~warps) fail("a warp overwrites what another one uses");
            if ((x.lane_readers | x.lane_writers) & ~lanes) fail("a lane overwrites what another one uses");
            x.changed_by = now;
        }
        x.writers |= warps, x.lane_writers |= lanes;
    }
    written.size = 0;
    threadIdx.x = lane;
}

static UNCHECKED void will_use(const void* pointer, int size, bool writes) {
    compare_written();
    const size_t at = (const Byte*)pointer - shared;
    if (at >= SHARED_SIZE) return;
    const unsigned lane = threadIdx.x, warps = 1u << lane / 32, lanes = 1u << lane % 32;
    if (writes) {
        written.at = at, written.size = size, written.lane = lane;
        for (int i = 0; i < size; i++) written.before[i] = shared[at + i];
        return;
    }
    for (int i = 0; i < size; i++) {
        Users& x = users_of(at + i);
        if (x.changed_by >= 0 && x.changed_by / 32 != lane / 32 && !(x.writers & warps))
            fail("a warp reads what another one may not have written yet");
        if (x.lane_writers & ~lanes && !(x.lane_writers & lanes))
            fail("a lane reads what another one may not have written yet");
        x.readers |= warps, x.lane_readers |= lanes;
    }
}

#define ACCESS(NAME, SIZE, WRITES) \
    extern "C" UNCHECKED void __tsan_##NAME(void* at) { will_use(at, SIZE, WRITES); }
#define ACCESSES(SIZE)                           \
    ACCESS(read##SIZE, SIZE, false)              \
    ACCESS(write##SIZE, SIZE, true)              \
    ACCESS(unaligned_read##SIZE, SIZE, false)    \
    ACCESS(unaligned_write##SIZE, SIZE, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
extern "C" UNCHECKED void __tsan_read_range(void* at, unsigned long size) { will_use(at, size, false); }
extern "C" UNCHECKED void __tsan_write_range(void* at, unsigned long size) {
    for (unsigned long i = 0; i < size; i += 16) will_use((Byte*)at + i, (int)min(size - i, 16ul), true);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
