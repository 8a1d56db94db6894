/* Inside of GuardProgram, shared by program.c, which runs programs, and program_type.c, which makes them. */
#ifndef FLAMBEAU_CAPTURE_PROGRAM_H
#define FLAMBEAU_CAPTURE_PROGRAM_H

#include "core.h"

/* name, and whether the operation may run Python code.  guards/program.py reads the table through `operations()`. */
#define OPERATIONS(X)                                                                                                   \
    /* loads: regs[dst] = ... */                                                                                        \
    X(ARGUMENT, 0) X(CONSTANT, 0) X(FUNCTION, 0) X(WEAKREF, 0) X(INSTANCE_DICT, 0) X(DICT_ENTRY, 0) X(DICT_KEY_AT, 0)   \
    X(ITEM, 0) X(TYPE_OF, 0) X(TYPE_ATTRIBUTE, 0) X(FUNCTION_FIELD, 0) X(METHOD_PART, 0) X(CELL_CONTENTS, 0)            \
    X(GETATTR, 1) X(CALL, 1)                                                                                            \
    /* the next `number` reads of one dict, at once */                                                                  \
    X(DICT_GROUP, 0)                                                                                                    \
    /* loads of symbols: symbols[dst] = ... */                                                                          \
    X(SYMBOL_SIZE, 0) X(SYMBOL_STRIDE, 0) X(SYMBOL_INT, 0)                                                              \
    /* checks */                                                                                                        \
    X(IS, 0) X(IS_NOT, 0) X(WEAK_IS, 0) X(TYPE, 0) X(WEAK_TYPE, 0) X(EQUALS, 0) X(LENGTH, 0) X(KEYS, 0)            \
    X(HAS_KEY, 0) X(NO_KEY, 0) X(ALIAS, 0) X(NOT_ALIAS, 0) X(CELL_EMPTY, 0) X(TENSOR, 0) X(TORCH_STATE, 0)              \
    X(RELATION, 0) X(DISTINCT_MEMORY, 0) X(ARRAY, 0)                                                                    \
    /* in snapshots only: `number` words of memory are what they were */                                                \
    X(WORDS, 0)

enum {
#define X(name, runs_python) OP_##name,
    OPERATIONS(X)
#undef X
};

/* See snapshot.h. */
typedef struct Word Word;

typedef struct {
    uint16_t code;
    uint16_t dst;
    uint16_t src;
    uint16_t guard; /* index of the guard that failed when this operation fails */
    union {
        int64_t number;
        PyObject *cached; /* DICT_ENTRY in a group: what it last loaded, valid while the dict has the group's version */
    };
    PyObject *object; /* owned: the payload */
    union {
        Py_hash_t hash;
        uint64_t version; /* DICT_GROUP: that of the dict when all of the group held */
        TensorFacts *tensor;
        int64_t *relation;
        const Word *words;
        uint16_t *sources; /* registers of DISTINCT_MEMORY: first `number` that are written, then the others, then 0 */
    };
} Op;

struct Program {
    PyObject_HEAD
    Py_ssize_t count;
    Op *ops;
    Py_ssize_t input_count;
    uint16_t *inputs;
    Py_ssize_t register_count;
    Py_ssize_t symbol_count;
    Py_ssize_t argument_count;
    int holds;             /* registers own their references */
    int passes_arguments;  /* input i is argument i, for all arguments */
    /* Of a program that has snapshots: */
    Program *snapshot;     /* NULL: none now */
    uint8_t *outdated;     /* how often the words of each register were found outdated */
    Py_ssize_t hits, taken;
    int running;           /* runs of the snapshot now: one that calls Python must not be replaced */
    /* Of a snapshot, which borrows the payloads of its operations: */
    Word *words;
    uint16_t *word_registers;
    PyObject *types;       /* weak references to the types it met */
};

/* ---- relation.c: conditions on symbols, as postfix programs ---- */

/* A checked copy of a payload (a tuple of ints); freed by PyMem_Free. */
int64_t *relation_new(PyObject *payload, Py_ssize_t symbol_count);
int relation_holds(const int64_t *words, const int64_t *symbols);
/* The name of a relation code, or NULL behind the last. */
const char *relation_code_name(size_t code);

/* ---- program.c ---- */

/* Has a program that is complete take snapshots, where that is worth it. */
void program_expect_snapshots(Program *program);
/* Frees a snapshot; NULL is none. */
void snapshot_free(Program *snapshot);
/* What TYPE_ATTRIBUTE loads when there is no such attribute (origins.ABSENT). */
void program_set_absent(PyObject *value);

#endif
