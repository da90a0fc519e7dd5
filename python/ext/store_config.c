/*
 * ReplicateConfig: how an object is placed and kept. Lists are stored as tuples of strings and
 * given out as new lists, so that appending to one changes nothing (as upstream).
 *
 * Older clients set with_soft_pin, which upstream dropped for soft_pin_action: both are kept, one
 * being a view of the other.
 */
#include <stddef.h>
#include <stdlib.h>

#include "store.h"

struct config {
    PyObject ob_base;
    uint64_t replica_num, nof_replica_num, dfs_replica_num;
    uint64_t soft_pin_ttl_ms;
    bool has_ttl;
    bool with_hard_pin;
    bool prefer_alloc_in_same_node;
    uint64_t ttl_ms; /* 0 = None */
    bool if_absent;
    PyObject *soft_pin_action; /* members of the enums */
    PyObject *data_type;
    PyObject *preferred_segments; /* tuples of str */
    PyObject *preferred_nof_segments;
    PyObject *preferred_segment; /* str */
    PyObject *group_ids;         /* tuple of str or None */
    PyObject *if_version;        /* tuples of int, or None */
    PyObject *if_checksum;
};

/* The enums of mooncake._types; found when the first configuration is made. */
static PyObject *enum_member(const char *type, const char *member) {
    PyObject *types = PyImport_ImportModule("mooncake._types");
    PyObject *class = types != NULL ? PyObject_GetAttrString(types, type) : NULL;
    PyObject *value = class != NULL ? PyObject_GetAttrString(class, member) : NULL;
    Py_XDECREF(types);
    Py_XDECREF(class);
    return value;
}

static PyObject *config_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    if (PyTuple_Size(args) > 0 || (keywords != NULL && PyDict_Size(keywords) > 0)) {
        PyErr_SetString(PyExc_TypeError, "ReplicateConfig() takes no arguments");
        return NULL;
    }
    struct config *self = (struct config *)mpy_new(type);
    if (self == NULL) {
        return NULL;
    }
    self->replica_num = 1;
    self->soft_pin_action = enum_member("SoftPinAction", "PRESERVE");
    self->data_type = enum_member("ObjectDataType", "UNKNOWN");
    self->preferred_segments = PyTuple_New(0);
    self->preferred_nof_segments = PyTuple_New(0);
    self->preferred_segment = PyUnicode_FromString("");
    PyObject **nones[] = {&self->group_ids, &self->if_version, &self->if_checksum};
    for (size_t i = 0; i < sizeof(nones) / sizeof(nones[0]); i++) {
        Py_INCREF(Py_None);
        *nones[i] = Py_None;
    }
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void config_dealloc(PyObject *object) {
    struct config *self = (struct config *)object;
    Py_XDECREF(self->soft_pin_action);
    Py_XDECREF(self->data_type);
    Py_XDECREF(self->preferred_segments);
    Py_XDECREF(self->preferred_nof_segments);
    Py_XDECREF(self->preferred_segment);
    Py_XDECREF(self->group_ids);
    Py_XDECREF(self->if_version);
    Py_XDECREF(self->if_checksum);
    mpy_free(object);
}

/* ---- attributes ---- */

static void *field(PyObject *self, void *offset) {
    return (char *)self + (size_t)(uintptr_t)offset;
}

static bool deleted(PyObject *value) {
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the attributes of a ReplicateConfig stay");
    }
    return value == NULL;
}

static PyObject *get_number(PyObject *self, void *offset) {
    return PyLong_FromUnsignedLongLong(*(uint64_t *)field(self, offset));
}
static int set_number(PyObject *self, PyObject *value, void *offset) {
    return deleted(value) || !mpy_u64(value, "the value", field(self, offset)) ? -1 : 0;
}

static PyObject *get_flag(PyObject *self, void *offset) {
    return PyBool_FromLong(*(bool *)field(self, offset));
}
static int set_flag(PyObject *self, PyObject *value, void *offset) {
    return deleted(value) || !mpy_bool(value, "the value", field(self, offset)) ? -1 : 0;
}

static PyObject *get_list(PyObject *self, void *offset) {
    return PySequence_List(*(PyObject **)field(self, offset));
}

/* A tuple of str, or NULL with a TypeError. */
static PyObject *strings_of(PyObject *value) {
    struct mpy_strings strings;
    if (!mpy_strings(value, "the value", &strings)) {
        return NULL;
    }
    PyObject *tuple = PyTuple_New((Py_ssize_t)strings.count);
    for (size_t i = 0; tuple != NULL && i < strings.count; i++) {
        PyObject *text = PyUnicode_FromString(strings.items[i]);
        if (text == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, text) != 0) {
            Py_CLEAR(tuple);
        }
    }
    mpy_strings_free(&strings);
    return tuple;
}

static void replace(PyObject **place, PyObject *value) {
    PyObject *old = *place;
    *place = value;
    Py_XDECREF(old);
}

static int set_list(PyObject *self, PyObject *value, void *offset) {
    PyObject *tuple = deleted(value) ? NULL : strings_of(value);
    if (tuple == NULL) {
        return -1;
    }
    replace(field(self, offset), tuple);
    return 0;
}

static PyObject *get_segment(PyObject *self, void *offset) {
    PyObject *text = *(PyObject **)field(self, offset);
    Py_INCREF(text);
    return text;
}
static int set_segment(PyObject *self, PyObject *value, void *offset) {
    const char *text = NULL;
    if (deleted(value) || !mpy_text(value, "the value", &text)) {
        return -1;
    }
    PyObject *copy = PyUnicode_FromString(text);
    if (copy == NULL) {
        return -1;
    }
    replace(field(self, offset), copy);
    return 0;
}

/* A list or None. */
static PyObject *get_list_or_none(PyObject *self, void *offset) {
    PyObject *list = *(PyObject **)field(self, offset);
    if (list == Py_None) {
        Py_RETURN_NONE;
    }
    return PySequence_List(list);
}
static int set_groups(PyObject *self, PyObject *value, void *offset) {
    if (value != Py_None) {
        return set_list(self, value, offset);
    }
    Py_INCREF(Py_None);
    replace(field(self, offset), Py_None);
    return 0;
}

static int set_numbers(PyObject *self, PyObject *value, void *offset) {
    struct mpy_numbers numbers;
    PyObject *kept = Py_None;
    if (deleted(value)) {
        return -1;
    }
    if (value == Py_None) {
        Py_INCREF(kept);
    } else if (mpy_numbers(value, "the value", &numbers)) {
        mpy_numbers_free(&numbers);
        kept = PySequence_Tuple(value);
    } else {
        return -1;
    }
    if (kept == NULL) {
        return -1;
    }
    replace(field(self, offset), kept);
    return 0;
}

static PyObject *get_life(PyObject *self, void *unused) {
    uint64_t ttl_ms = ((struct config *)self)->ttl_ms;
    if (ttl_ms == 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(ttl_ms);
}
static int set_life(PyObject *self, PyObject *value, void *unused) {
    uint64_t ttl_ms = 0;
    if (deleted(value) || (value != Py_None && !mpy_u64(value, "ttl_ms", &ttl_ms))) {
        return -1;
    }
    ((struct config *)self)->ttl_ms = ttl_ms;
    return 0;
}

static PyObject *get_ttl(PyObject *self, void *unused) {
    const struct config *c = (struct config *)self;
    if (!c->has_ttl) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(c->soft_pin_ttl_ms);
}
static int set_ttl(PyObject *self, PyObject *value, void *unused) {
    struct config *c = (struct config *)self;
    if (deleted(value) ||
        (value != Py_None && !mpy_u64(value, "soft_pin_ttl_ms", &c->soft_pin_ttl_ms))) {
        return -1;
    }
    c->has_ttl = value != Py_None;
    return 0;
}

/* Members of the same enum as the attribute has now. */
static int set_enum(PyObject *self, PyObject *value, void *offset) {
    PyObject **place = field(self, offset);
    if (deleted(value)) {
        return -1;
    }
    if (Py_TYPE(value) != Py_TYPE(*place)) {
        PyErr_Format(PyExc_TypeError, "the value must be a %R, not %R", (PyObject *)Py_TYPE(*place),
                     (PyObject *)Py_TYPE(value));
        return -1;
    }
    Py_INCREF(value);
    replace(place, value);
    return 0;
}

static long enum_value(PyObject *member) {
    PyObject *value = PyObject_GetAttrString(member, "value");
    long number = value != NULL ? PyLong_AsLong(value) : -1;
    Py_XDECREF(value);
    return number;
}

enum { SOFT_PIN_ENABLE = 1, SOFT_PIN_DISABLE = 2 };

static PyObject *get_soft_pin(PyObject *self, void *unused) {
    return PyBool_FromLong(enum_value(((struct config *)self)->soft_pin_action) == SOFT_PIN_ENABLE);
}
static int set_soft_pin(PyObject *self, PyObject *value, void *unused) {
    bool on = false;
    if (deleted(value) || !mpy_bool(value, "with_soft_pin", &on)) {
        return -1;
    }
    PyObject *member = enum_member("SoftPinAction", on ? "ENABLE" : "PRESERVE");
    if (member == NULL) {
        return -1;
    }
    replace(&((struct config *)self)->soft_pin_action, member);
    return 0;
}

#define AT(name) ((void *)offsetof(struct config, name))
static PyGetSetDef config_attributes[] = {
    {"replica_num", get_number, set_number, "memory replicas, each on another node",
     AT(replica_num)},
    {"nof_replica_num", get_number, set_number, "replicas on NVMe-oF", AT(nof_replica_num)},
    {"dfs_replica_num", get_number, set_number, "replicas on a distributed file system",
     AT(dfs_replica_num)},
    {"soft_pin_action", get_segment, set_enum, "SoftPinAction: evicted after the others",
     AT(soft_pin_action)},
    {"soft_pin_ttl_ms", get_ttl, set_ttl, "how long a soft pin holds; None = the master's default",
     NULL},
    {"with_soft_pin", get_soft_pin, set_soft_pin,
     "older name: True is SoftPinAction.ENABLE, False is PRESERVE", NULL},
    {"with_hard_pin", get_flag, set_flag, "never evicted", AT(with_hard_pin)},
    {"preferred_segments", get_list, set_list, "names of segments to use first; a copy",
     AT(preferred_segments)},
    {"preferred_nof_segments", get_list, set_list, "the same for NVMe-oF; a copy",
     AT(preferred_nof_segments)},
    {"preferred_segment", get_segment, set_segment, "deprecated: one preferred segment",
     AT(preferred_segment)},
    {"prefer_alloc_in_same_node", get_flag, set_flag, "all replicas of a batch on one node",
     AT(prefer_alloc_in_same_node)},
    {"data_type", get_segment, set_enum, "ObjectDataType: what the object holds", AT(data_type)},
    {"group_ids", get_list_or_none, set_groups, "one group a key, or None", AT(group_ids)},
    {"ttl_ms", get_life, set_life,
     "ours: the object ends so long after it became readable; None = never", NULL},
    {"if_absent", get_flag, set_flag, "ours: OBJECT_ALREADY_EXISTS when the key is there",
     AT(if_absent)},
    {"if_version", get_list_or_none, set_numbers,
     "ours: the version that the put replaces, one a key, else INVALID_VERSION", AT(if_version)},
    {"if_checksum", get_list_or_none, set_numbers,
     "ours: the checksum of what the put replaces, one a key, else INVALID_VERSION",
     AT(if_checksum)},
    {NULL, NULL, NULL, NULL, NULL}};
#undef AT

static PyObject *config_str(PyObject *object) {
    static const char CODE[] = "mooncake._types";
    PyObject *types = PyImport_ImportModule(CODE);
    PyObject *text = types != NULL ? PyObject_CallMethod(types, "_config_text", "O", object) : NULL;
    Py_XDECREF(types);
    return text;
}

bool mpy_config_add_type(PyObject *module, PyTypeObject **type) {
    static PyType_Slot slots[] = {
        {Py_tp_new, config_new},
        {Py_tp_dealloc, config_dealloc},
        {Py_tp_getset, config_attributes},
        {Py_tp_str, config_str},
        {Py_tp_doc,
         (char *)"ReplicateConfig()\n--\n\nHow an object is placed and kept: replicas, pins, "
                 "preferred segments, groups; how long "
                 "it lives and what it may replace."},
        {0, NULL}};
    static PyType_Spec spec = {.name = "mooncake.store.ReplicateConfig",
                               .basicsize = sizeof(struct config),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    return mpy_add_type(module, &spec, type);
}

/* ---- for calls ---- */

/* The preferred segments and the single one, as C strings. */
static bool take_segments(const struct config *from, struct mpy_config *out) {
    Py_ssize_t count = PyTuple_Size(from->preferred_segments);
    const char *single = PyUnicode_AsUTF8AndSize(from->preferred_segment, NULL);
    if (single == NULL) {
        return false;
    }
    if (count == 0 && single[0] == '\0') {
        return true;
    }
    out->segments = mpy_calloc((size_t)count + 1, sizeof(*out->segments));
    if (out->segments == NULL) {
        return false;
    }
    size_t n = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *text = PyTuple_GetItem(from->preferred_segments, i);
        out->segments[n++] = PyUnicode_AsUTF8AndSize(text, NULL);
    }
    if (count == 0) {
        out->segments[n++] = single;
    }
    out->owners[0] = from->preferred_segments;
    out->owners[1] = from->preferred_segment;
    Py_INCREF(out->owners[0]);
    Py_INCREF(out->owners[1]);
    out->c.preferred_segments = out->segments;
    out->c.preferred_segment_count = n;
    return true;
}

static bool take_groups(const struct config *from, struct mpy_config *out) {
    if (from->group_ids == Py_None) {
        return true;
    }
    size_t count = (size_t)PyTuple_Size(from->group_ids);
    const char **groups = mpy_calloc(count, sizeof(*groups));
    if (groups == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        groups[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(from->group_ids, (Py_ssize_t)i), NULL);
    }
    out->c.group_ids = groups;
    out->c.group_id_count = count;
    out->owners[2] = from->group_ids;
    Py_INCREF(out->owners[2]);
    return true;
}

/* At most one condition. */
static bool take_condition(const struct config *from, struct mpy_config *out) {
    bool version = from->if_version != Py_None, checksum = from->if_checksum != Py_None;
    if (from->if_absent + version + checksum > 1) {
        PyErr_SetString(PyExc_ValueError,
                        "one of if_absent, if_version and if_checksum can be asked for at a time");
        return false;
    }
    out->c.condition = from->if_absent ? MC_PUT_IF_ABSENT
                       : version       ? MC_PUT_IF_VERSION
                       : checksum      ? MC_PUT_IF_CHECKSUM
                                       : MC_PUT_ALWAYS;
    if (!version && !checksum) {
        return true;
    }
    if (!mpy_numbers(version ? from->if_version : from->if_checksum, "expected", &out->expected)) {
        return false;
    }
    out->c.expected = out->expected.items;
    out->c.expected_count = out->expected.count;
    return true;
}

bool mpy_config_take(PyTypeObject *type, PyObject *object, struct mpy_config *out) {
    *out = (struct mpy_config){.c = {.replica_num = 1}};
    if (object == NULL) {
        return true;
    }
    if (Py_TYPE(object) != type && !PyType_IsSubtype(Py_TYPE(object), type)) {
        PyErr_Format(PyExc_TypeError, "config must be a ReplicateConfig, not %R",
                     (PyObject *)Py_TYPE(object));
        return false;
    }
    const struct config *from = (struct config *)object;
    out->c.replica_num = from->replica_num;
    out->c.with_soft_pin = enum_value(from->soft_pin_action) == SOFT_PIN_ENABLE;
    out->c.without_soft_pin = enum_value(from->soft_pin_action) == SOFT_PIN_DISABLE;
    out->c.data_type = (uint8_t)enum_value(from->data_type);
    out->c.soft_pin_ttl_ms = from->has_ttl ? from->soft_pin_ttl_ms : 0;
    out->c.with_hard_pin = from->with_hard_pin;
    out->c.prefer_same_node = from->prefer_alloc_in_same_node;
    out->unsupported = from->nof_replica_num > 0 || from->dfs_replica_num > 0;
    out->c.ttl_ms = from->ttl_ms;
    if (!take_segments(from, out) || !take_groups(from, out) || !take_condition(from, out)) {
        mpy_config_free(out);
        return false;
    }
    return true;
}

void mpy_config_free(struct mpy_config *config) {
    free(config->segments);
    free((void *)config->c.group_ids);
    mpy_numbers_free(&config->expected);
    for (size_t i = 0; i < sizeof(config->owners) / sizeof(config->owners[0]); i++) {
        Py_XDECREF(config->owners[i]);
    }
    *config = (struct mpy_config){0};
}
