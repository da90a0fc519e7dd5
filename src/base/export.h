/* MC_PUBLIC marks what libmooncake.so exports; everything else stays inside. */
#ifndef MC_BASE_EXPORT_H
#define MC_BASE_EXPORT_H
#define MC_PUBLIC __attribute__((visibility("default")))
#endif
