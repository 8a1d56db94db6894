/* The launcher of a Program on a GPU: replays a recording that serves the call, and asks its policy (Python,
 * graph_launch/policy.py) about every other call.  The policy launches plainly, measures, records, or gives recordings up:
 * `launch_plainly()` makes every later call a plain one. */
#include "recording.h"

#include <string.h>
#include <structmember.h>

enum { MAX_SYMBOLS = 1024 /* as in graph_launch/eligibility.py */, MAX_RECORDINGS = 16 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *executor, *policy, *weakrefs;
    PyObject *settings; /* functions without arguments: what they answer, library calls depend on */
    Recording *recordings[MAX_RECORDINGS]; /* the one that served last comes first */
    Py_ssize_t n_recordings;
    int32_t device;
    int last_match; /* of the best recording, when the policy was asked */
} Launcher;

static PyObject *plain(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return executor_vectorcall(((Launcher *)self)->executor, args, nargsf, kwnames);
}

/* What the settings are now, as a tuple; NULL with an exception set. */
static PyObject *read_settings(const Launcher *self)
{
    const Py_ssize_t n = PyTuple_GET_SIZE(self->settings);
    PyObject *made = PyTuple_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(self->settings, i));
        if (answer == NULL) Py_CLEAR(made);
        else PyTuple_SET_ITEM(made, i, answer);
    }
    return made;
}

/* The recording that serves the call, at the front of the list from now on; NULL if none does. */
static Recording *find(Launcher *self, PyObject *const *args, int spending)
{
    const Executor *ex = (Executor *)self->executor;
    int64_t symbols[MAX_SYMBOLS];
    void *stream;
    self->last_match = MATCH_OTHER;
    if (cuda_stream(self->device, &stream) || cuda_is_capturing(stream)) return NULL;
    if (executor_read_symbols(ex, args, symbols)) {
        PyErr_Clear(); /* the plain call reports it */
        return NULL;
    }
    PyObject *settings = read_settings(self);
    if (settings == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Recording *found = NULL;
    for (Py_ssize_t i = 0; found == NULL && i < self->n_recordings; i++) {
        Recording *recording = self->recordings[i];
        const int match = recording_match(recording, args, stream, symbols, settings, spending);
        if (match == MATCH) {
            memmove(&self->recordings[1], &self->recordings[0], i * sizeof recording);
            found = self->recordings[0] = recording;
        }
        if (match > self->last_match) self->last_match = match;
    }
    Py_DECREF(settings);
    return found;
}

static PyObject *launcher_vectorcall(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Launcher *self = (Launcher *)object;
    const Executor *ex = (Executor *)self->executor;
    /* The collector clears the policy of an unreachable launcher, which finalizers can still call. */
    if (PyVectorcall_NARGS(nargsf) != ex->n_inputs || kwnames != NULL || self->policy == NULL)
        return plain(object, args, nargsf, kwnames);
    Recording *recording = self->n_recordings == 0 ? NULL : find(self, args, 0);
    if (recording != NULL) return recording_replay(recording, args);
    PyObject *policy = Py_NewRef(self->policy);
    PyObject *result = PyObject_Vectorcall(policy, args, nargsf, NULL);
    Py_DECREF(policy);
    return result;
}

/* launcher.spend(list) -> outputs: as Executor.spend; what a recording serves drops its inputs when it returns. */
static PyObject *launcher_spend(PyObject *object, PyObject *list)
{
    Launcher *self = (Launcher *)object;
    if (self->vectorcall == plain || self->policy == NULL || !PyList_Check(list) ||
        PyList_GET_SIZE(list) != ((Executor *)self->executor)->n_inputs)
        return executor_spend(self->executor, list);
    PyObject *result = NULL;
    if (self->n_recordings > 0) {
        PyObject *args = PyList_AsTuple(list);
        if (args == NULL) return NULL;
        Recording *recording = find(self, &PyTuple_GET_ITEM(args, 0), 1);
        if (recording != NULL && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) == 0)
            result = recording_replay(recording, &PyTuple_GET_ITEM(args, 0));
        Py_DECREF(args);
        if (recording != NULL) return result;
    }
    PyObject *spend = PyObject_GetAttrString(self->policy, "spend");
    if (spend != NULL) result = PyObject_CallOneArg(spend, list);
    Py_XDECREF(spend);
    return result;
}

static PyObject *launcher_add(PyObject *object, PyObject *recording)
{
    Launcher *self = (Launcher *)object;
    if (!PyObject_TypeCheck(recording, &RecordingType)) {
        PyErr_SetString(PyExc_TypeError, "add takes a Recording");
        return NULL;
    }
    if (self->n_recordings == MAX_RECORDINGS) {
        PyErr_SetString(PyExc_ValueError, "the launcher has as many recordings as it can hold");
        return NULL;
    }
    memmove(&self->recordings[1], &self->recordings[0], self->n_recordings * sizeof *self->recordings);
    self->recordings[0] = (Recording *)Py_NewRef(recording);
    self->n_recordings++;
    Py_RETURN_NONE;
}

static PyObject *launcher_remove(PyObject *object, PyObject *recording)
{
    Launcher *self = (Launcher *)object;
    for (Py_ssize_t i = 0; i < self->n_recordings; i++) {
        if ((PyObject *)self->recordings[i] != recording) continue;
        self->n_recordings--;
        memmove(&self->recordings[i], &self->recordings[i + 1], (self->n_recordings - i) * sizeof *self->recordings);
        Py_DECREF(recording);
        break;
    }
    Py_RETURN_NONE;
}

static PyObject *launcher_launch_plainly(PyObject *object, PyObject *unused)
{
    Launcher *self = (Launcher *)object;
    self->vectorcall = plain;
    while (self->n_recordings > 0) Py_DECREF(self->recordings[--self->n_recordings]);
    Py_RETURN_NONE;
}

static PyObject *launcher_recordings(PyObject *object, void *closure)
{
    Launcher *self = (Launcher *)object;
    PyObject *made = PyTuple_New(self->n_recordings);
    for (Py_ssize_t i = 0; made != NULL && i < self->n_recordings; i++) PyTuple_SET_ITEM(made, i, Py_NewRef((PyObject *)self->recordings[i]));
    return made;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"executor", "device", "policy", "settings", NULL};
    PyObject *executor, *policy, *settings;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!iOO!", names, &ExecutorType, &executor, &device, &policy, &PyTuple_Type,
                                     &settings)) return NULL;
    if (((Executor *)executor)->n_symbols / 3 > MAX_SYMBOLS) {
        PyErr_SetString(PyExc_ValueError, "a program with too many symbolic sizes");
        return NULL;
    }
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = launcher_vectorcall;
    self->executor = Py_NewRef(executor);
    self->policy = Py_NewRef(policy);
    self->settings = Py_NewRef(settings);
    self->device = device;
    return (PyObject *)self;
}

static int launcher_traverse(PyObject *object, visitproc visit, void *arg)
{
    Launcher *self = (Launcher *)object;
    Py_VISIT(self->policy);
    return 0;
}

static int launcher_clear(PyObject *object)
{
    Py_CLEAR(((Launcher *)object)->policy);
    return 0;
}

static void launcher_dealloc(PyObject *object)
{
    Launcher *self = (Launcher *)object;
    PyObject_GC_UnTrack(object);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs(object);
    while (self->n_recordings > 0) Py_DECREF(self->recordings[--self->n_recordings]);
    Py_XDECREF(self->policy);
    Py_XDECREF(self->settings);
    Py_XDECREF(self->executor);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *launcher_repr(PyObject *object) { return PyObject_Repr(((Launcher *)object)->executor); }

static PyMemberDef launcher_members[] = {
    {"executor", T_OBJECT, offsetof(Launcher, executor), READONLY, "Launches the program's kernels one by one."},
    {"policy", T_OBJECT, offsetof(Launcher, policy), READONLY, "Called for the calls that no recording serves."},
    {"last_match", T_INT, offsetof(Launcher, last_match), READONLY,
     "Why no recording served the last such call: 1 another stream or other sizes, 2 an input moved, 3 an output is held."},
    {NULL},
};

static PyGetSetDef launcher_getters[] = {
    {"recordings", launcher_recordings, NULL, "The recordings, the one that served last first.", NULL},
    {NULL},
};

static PyMethodDef launcher_methods[] = {
    {"spend", launcher_spend, METH_O, "spend(list) -> outputs: a call with the items of a list, which it empties."},
    {"add", launcher_add, METH_O, "add(recording): have it serve calls."},
    {"remove", launcher_remove, METH_O, "remove(recording): drop it."},
    {"launch_plainly", launcher_launch_plainly, METH_NOARGS, "launch_plainly(): launch plainly from now on; the recordings are dropped."},
    {NULL},
};

PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "flambeau_runtime._core.Launcher",
    .tp_doc = "Launcher(executor, device, policy, settings): a Program on a GPU, replayed from recordings where one serves the call.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = launcher_new,
    .tp_dealloc = launcher_dealloc,
    .tp_traverse = launcher_traverse,
    .tp_clear = launcher_clear,
    .tp_repr = launcher_repr,
    .tp_members = launcher_members,
    .tp_getset = launcher_getters,
    .tp_methods = launcher_methods,
    .tp_weaklistoffset = offsetof(Launcher, weakrefs),
};
