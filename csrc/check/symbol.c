/* SPDX-License-Identifier: MIT */
/*
 * Finding a function of a loaded object by name. dlsym() is unsuitable: it searches a library that
 * the program was linked to only through the program's own scope, and takes the linker's lock.
 */
#include "symbol.h"

#include <elf.h>
#include <stdint.h>
#include <string.h>

struct image {
    const Elf64_Sym *symbols;
    const char *names;
    const uint32_t *hash; /* DT_GNU_HASH */
    const uint16_t *versions;
};

/* The linker makes these pointers absolute, unless the section is read-only. */
static const void *absolute(const struct link_map *map, Elf64_Addr pointer)
{
    return (const void *)(pointer < map->l_addr ? pointer + map->l_addr : pointer);
}

static struct image image_of(const struct link_map *map)
{
    struct image image = {0};
    for (const Elf64_Dyn *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        const void *pointer = absolute(map, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            image.symbols = pointer;
        else if (entry->d_tag == DT_STRTAB)
            image.names = pointer;
        else if (entry->d_tag == DT_GNU_HASH)
            image.hash = pointer;
        else if (entry->d_tag == DT_VERSYM)
            image.versions = pointer;
    }
    return image;
}

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* Set in older versions of a symbol, which new programs are not linked to. */
enum { HIDDEN_VERSION = 0x8000 };

static bool matches(const struct image *image, uint32_t index, const char *name)
{
    const Elf64_Sym *symbol = &image->symbols[index];
    return symbol->st_shndx != SHN_UNDEF &&
           !(image->versions && image->versions[index] & HIDDEN_VERSION) &&
           ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
           strcmp(image->names + symbol->st_name, name) == 0;
}

void *cqn_symbol(const struct link_map *map, const char *name)
{
    struct image image = image_of(map);
    if (!image.hash || !image.symbols || !image.names)
        return NULL;
    uint32_t buckets = image.hash[0], first = image.hash[1], words = image.hash[2];
    const uint32_t *bucket = image.hash + 4 + words * (sizeof(Elf64_Addr) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = hash_of(name);
    uint32_t index = bucket[hash % buckets];
    if (index < first)
        return NULL;
    for (;; index++) {
        uint32_t other = chain[index - first];
        if ((other | 1) == (hash | 1) && matches(&image, index, name))
            return (void *)(map->l_addr + image.symbols[index].st_value);
        if (other & 1) /* the last of its bucket */
            return NULL;
    }
}
