/* Coins of eager's generator on a CPU, many at a time: mt19937 (Matsumoto and Nishimura, "Mersenne Twister", 1998).

   Eager makes one 64-bit number of two words for a coin, calls a function for each word, and compares a double. Here whole blocks of words
   are made, tempered and compared by vector instructions. Words and order are the same. */
#include "cpu_draws.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORS __attribute__((target_clones("arch=skylake-avx512", "avx2", "default"), optimize("O3")))
#else
#define VECTORS
#endif

enum { WORDS = 624, SHIFT = 397 };

/* The head of what `Generator.get_state` gives: `left` is 1 where all words of a block are used, 624 behind the first of one. */
typedef struct {
    uint64_t seed;
    int32_t left, seeded;
    uint64_t next, words[WORDS];
} State;

static inline __attribute__((always_inline)) uint32_t twisted(uint32_t upper, uint32_t lower)
{
    return (((upper & 0x80000000u) | (lower & 0x7fffffffu)) >> 1) ^ (-(lower & 1u) & 0x9908b0dfu);
}

static inline __attribute__((always_inline)) uint32_t tempered(uint32_t word)
{
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}

VECTORS static void next_block(uint32_t *words)
{
    for (int k = 0; k < WORDS - SHIFT; k++) words[k] = words[k + SHIFT] ^ twisted(words[k], words[k + 1]);
    for (int k = WORDS - SHIFT; k < WORDS - 1; k++) words[k] = words[k - (WORDS - SHIFT)] ^ twisted(words[k], words[k + 1]);
    words[WORDS - 1] = words[SHIFT - 1] ^ twisted(words[WORDS - 1], words[0]);
}

/* Whether the 53 bits that eager keeps of two words are below a threshold of 21 and 32 bits. */
static inline __attribute__((always_inline)) uint8_t coin(uint32_t first, uint32_t second, uint32_t high, uint32_t low)
{
    const uint32_t top = tempered(first) & 0x1fffffu;
    return (top < high) | ((top == high) & (tempered(second) < low));
}

VECTORS static void coins_of(const uint32_t *restrict words, uint8_t *restrict out, int64_t count, uint32_t high, uint32_t low)
{
    for (int64_t i = 0; i < count; i++) out[i] = coin(words[2 * i], words[2 * i + 1], high, low);
}

/* Fills `out`, and moves the state on; 0 where the state is not one that is known. */
static int draw(State *state, uint8_t *out, int64_t count, uint64_t threshold)
{
    const uint32_t high = threshold >> 32, low = (uint32_t)threshold;
    uint32_t words[WORDS];
    if (state->left < 1 || state->left > WORDS || !state->seeded) return 0;
    int at = WORDS + 1 - state->left;
    for (int k = 0; k < WORDS; k++) words[k] = (uint32_t)state->words[k];
    while (count > 0) {
        if (at >= WORDS - 1) { /* the block ends, perhaps between the words of a coin */
            const int split = at == WORDS - 1;
            const uint32_t last = words[WORDS - 1];
            next_block(words);
            at = split;
            if (!split) continue;
            *out++ = coin(last, words[0], high, low);
            count--;
            continue;
        }
        const int64_t pairs = (WORDS - at) / 2 < count ? (WORDS - at) / 2 : count;
        coins_of(words + at, out, pairs, high, low);
        at += 2 * (int)pairs;
        out += pairs;
        count -= pairs;
    }
    for (int k = 0; k < WORDS; k++) state->words[k] = words[k];
    state->left = WORDS + 1 - at;
    state->next = at;
    return 1;
}

/* The state's memory, of a tensor that `get_state` made and the caller owns; NULL with an error set. */
static State *read_state(PyObject *generator, PyObject **tensor)
{
    *tensor = PyObject_CallMethod(generator, "get_state", NULL);
    PyObject *address = *tensor == NULL ? NULL : PyObject_CallMethod(*tensor, "data_ptr", NULL);
    if (address == NULL) return NULL;
    State *state = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return state;
}

/* draw_coins(generator, address, count, threshold) -> whether its state was known. Meanwhile no other thread runs Python, and begins a draw of
   eager's, but one that has begun may get the generator's lock late: where the state has moved, all is drawn again, behind that draw. */
PyObject *draw_coins(PyObject *module, PyObject *args)
{
    PyObject *generator, *tensor = NULL, *latest = NULL;
    unsigned long long out, threshold;
    long long count;
    if (!PyArg_ParseTuple(args, "OKLK", &generator, &out, &count, &threshold)) return NULL;
    State *state = read_state(generator, &tensor);
    while (state != NULL) {
        const State before = *state;
        if (!draw(state, (uint8_t *)(uintptr_t)out, count, threshold)) {
            Py_DECREF(tensor);
            Py_RETURN_FALSE;
        }
        State *now = read_state(generator, &latest);
        if (now != NULL && memcmp(now, &before, sizeof before) == 0) {
            PyObject *done = PyObject_CallMethod(generator, "set_state", "O", tensor);
            Py_DECREF(tensor);
            Py_DECREF(latest);
            if (done == NULL) return NULL;
            Py_DECREF(done);
            Py_RETURN_TRUE;
        }
        Py_DECREF(tensor);
        tensor = latest;
        latest = NULL;
        state = now;
    }
    Py_XDECREF(tensor);
    return NULL;
}
