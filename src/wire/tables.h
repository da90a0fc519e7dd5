/*
 * How schema tables are written. Private to wire.
 *
 *     MC_STRUCT(t_nof_owner, mw_nof_owner, F(mw_nof_owner, segment_id, mc_t_uuid), ...);
 *
 * lists members of the C struct in the order in which they travel, each with its table.
 */
#ifndef MC_WIRE_TABLES_H
#define MC_WIRE_TABLES_H

#include "wire/master_rpc.h"

#define F(ctype, member, table)                                                                    \
    { &(table), offsetof(struct ctype, member) }

#define MC_TYPE_OF_FIELDS(kind, name, ctype, knows)                                                \
    { (kind), sizeof(struct ctype), NULL, name##_fields, MC_ARRAY_LEN(name##_fields), (knows) }
#define MC_COMPOSED(kind, name, ctype, ...)                                                        \
    static const struct mc_field name##_fields[] = {__VA_ARGS__};                                  \
    static const struct mc_type name = MC_TYPE_OF_FIELDS(kind, name, ctype, NULL)

#define MC_STRUCT(name, ctype, ...)        MC_COMPOSED(MC_KIND_STRUCT, name, ctype, __VA_ARGS__)
#define MC_STRUCT_SHARED(name, ctype, ...) /* declared in a header */                              \
    static const struct mc_field name##_fields[] = {__VA_ARGS__};                                  \
    const struct mc_type name = MC_TYPE_OF_FIELDS(MC_KIND_STRUCT, name, ctype, NULL)
#define MC_EXPECTED(name, ctype, T)                                                                \
    MC_COMPOSED(MC_KIND_EXPECTED, name, ctype, F(ctype, error, mc_t_i32), F(ctype, value, T))
#define MC_EXPECTED_SHARED(name, ctype, T) /* declared in a header */                              \
    static const struct mc_field name##_fields[] = {F(ctype, error, mc_t_i32),                     \
                                                    F(ctype, value, T)};                           \
    const struct mc_type name = MC_TYPE_OF_FIELDS(MC_KIND_EXPECTED, name, ctype, NULL)
#define MC_OPTIONAL(name, ctype, T)                                                                \
    MC_COMPOSED(MC_KIND_OPT, name, ctype, F(ctype, has, mc_t_bool), F(ctype, value, T))
#define MC_VEC_OF(name, T)                                                                         \
    static const struct mc_type name = {MC_KIND_VEC, sizeof(struct mc_vec), &(T), NULL, 0, NULL}
#define MC_MAP_OF(name, entry)                                                                     \
    static const struct mc_type name = {MC_KIND_MAP, sizeof(struct mc_vec), &(entry), NULL, 0, NULL}

/* ---- RPC tables ---- */

#define MC_RPC_ONE_VERSION(args, ret)                                                              \
    {                                                                                              \
        .version_count = 1, .versions = { {(args), (ret), 0, 0} }                                  \
    }

/* What a header's X list promises to handlers, compared with the tables' sizes when they are
 * completed. */
struct mc_rpc_promise {
    const char *name;
    size_t args_size, ret_size;
};
struct mc_nothing {}; /* the argument struct of an RPC without arguments */
#define MC_SIZE_OF(T)                                                                              \
    sizeof(*__builtin_choose_expr(__builtin_types_compatible_p(T, void), (struct mc_nothing *)0,   \
                                  (T *)0))
#define MC_RPC_PROMISE(rpc, args, ret) {#rpc, MC_SIZE_OF(args), MC_SIZE_OF(ret)},

/* Fills name, id, sizes and hashes of an entry that has its types. */
void mc_rpc_desc_complete(struct mc_rpc_desc *rpc, const char *class_name,
                          const struct mc_rpc_promise *promise);

/* Answer types that several services give. */
extern const struct mc_type mc_t_e_void, mc_t_e_bool, mc_t_e_ping, mc_t_e_i64, mc_t_e_uuid,
    mc_t_e_task;

#endif
