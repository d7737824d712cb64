/* The Python face of the kernels: buffers in, bytes out, the interpreter let go while they work. Every length is
   checked here before a kernel sees a pointer. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "kernels.h"

static const kernel_set *chosen = &scalar_kernels;

typedef enum { FP32 = KINDS, BF16, TOPK, ALL } other_kind;

static size_t payload_bytes(int kind, size_t n) {
    if (kind < KINDS)
        return blocks_bytes(&chosen->blocks[kind], n);
    return kind == FP32 ? 4 * n : kind == BF16 ? 2 * n : CHUNK_BYTES * ((n + CHUNK - 1) / CHUNK);
}

static enum verdict run_encode(int kind, const float *values, size_t n, uint8_t *payload) {
    if (kind < KINDS)
        return blocks_encode(&chosen->blocks[kind], values, n, payload);
    if (kind == TOPK)
        return topk_encode(chosen, values, n, payload);
    if (kind == BF16)
        chosen->bf16_encode(values, (uint16_t *)payload, n);
    else
        memcpy(payload, values, 4 * n);
    return FINE;
}

static enum verdict run_decode(int kind, const uint8_t *payload, size_t n, float *into) {
    if (kind < KINDS)
        return blocks_decode(chosen, (enum kind)kind, payload, n, into);
    if (kind == TOPK)
        return topk_decode(payload, n, into);
    if (kind == BF16)
        chosen->bf16_decode((const uint16_t *)payload, into, n);
    else
        memcpy(into, payload, 4 * n);
    return FINE;
}

static enum verdict run_add(int kind, const uint8_t *payload, size_t n, float weight, float *into) {
    if (kind < KINDS)
        return blocks_add(&chosen->blocks[kind], payload, n, weight, into);
    if (kind == TOPK)
        return topk_add(payload, n, weight, into);
    if (kind == BF16)
        chosen->bf16_add((const uint16_t *)payload, weight, into, n);
    else
        chosen->fp32_add((const float *)payload, weight, into, n);
    return FINE;
}

static int check(int kind, Py_ssize_t value_bytes, Py_ssize_t payload) {
    if (kind < 0 || kind >= ALL || value_bytes % 4) {
        PyErr_SetString(PyExc_ValueError, "no such codec, or values that are not fp32");
        return 0;
    }
    if (payload >= 0 && (size_t)payload != payload_bytes(kind, (size_t)value_bytes / 4)) {
        PyErr_SetString(PyExc_ValueError, "the payload has another length");
        return 0;
    }
    return 1;
}

static PyObject *encode(PyObject *self, PyObject *args) {
    int kind;
    Py_buffer values;
    (void)self;
    if (!PyArg_ParseTuple(args, "iy*", &kind, &values))
        return NULL;
    size_t n = (size_t)values.len / 4;
    PyObject *payload = NULL;
    if (check(kind, values.len, -1))
        payload = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)payload_bytes(kind, n));
    if (payload) {
        uint8_t *into = (uint8_t *)PyBytes_AsString(payload);
        enum verdict verdict;
        Py_BEGIN_ALLOW_THREADS
        verdict = run_encode(kind, values.buf, n, into);
        Py_END_ALLOW_THREADS
        if (verdict != FINE) {
            Py_DECREF(payload);
            payload = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&values);
    return payload;
}

static PyObject *decode_or_add(PyObject *args, int adds) {
    int kind;
    float weight = 1.0f;
    Py_buffer payload, into;
    if (!PyArg_ParseTuple(args, adds ? "iy*w*f" : "iy*w*", &kind, &payload, &into, &weight))
        return NULL;
    PyObject *result = NULL;
    if (check(kind, into.len, payload.len)) {
        size_t n = (size_t)into.len / 4;
        enum verdict verdict;
        Py_BEGIN_ALLOW_THREADS
        verdict = adds ? run_add(kind, payload.buf, n, weight, into.buf) : run_decode(kind, payload.buf, n, into.buf);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(verdict);
    }
    PyBuffer_Release(&payload);
    PyBuffer_Release(&into);
    return result;
}

static PyObject *decode(PyObject *self, PyObject *args) { (void)self; return decode_or_add(args, 0); }

static PyObject *add(PyObject *self, PyObject *args) { (void)self; return decode_or_add(args, 1); }

static PyObject *use(PyObject *self, PyObject *args) {
    const char *name;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    const kernel_set *fast = avx2_kernels();
    if (fast && (!strcmp(name, fast->name) || !strcmp(name, "best")))
        chosen = fast;
    else if (!strcmp(name, "scalar") || !strcmp(name, "best"))
        chosen = &scalar_kernels;
    else {
        PyErr_Format(PyExc_ValueError, "this processor has no kernels %s", name);
        return NULL;
    }
    return PyUnicode_FromString(chosen->name);
}

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS, "encode(kind, values) -> bytes, or None: a value is not finite"},
    {"decode", decode, METH_VARARGS, "decode(kind, payload, into) -> verdict"},
    {"add", add, METH_VARARGS, "add(kind, payload, into, weight) -> verdict; into += weight * values"},
    {"use", use, METH_VARARGS, "use('best' | 'avx2' | 'scalar') -> what is used from here on"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "peer.codec._kernels", "Codecs in C; see peer/codec/kernels.py.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&definition); }
