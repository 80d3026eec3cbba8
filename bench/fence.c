/* Aligned memory with fences, for LD_PRELOAD: no write outside of a block goes unseen, and none does damage.
 *
 * Tensors and the work space of kernels are aligned blocks. While armed, each ends at inaccessible memory; what its alignment
 * leaves before and after it holds a pattern. An access outside is counted, as a read or as a write, and its page is opened, so that
 * the program continues. New memory is filled with NaNs, freed memory becomes inaccessible. Linux on x86-64 with glibc. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { PAGE = 4096, PATTERN = 0xFF };
static const size_t ARENA = (size_t)1 << 40, GUARD = (size_t)1 << 20;

typedef struct { size_t pages, size; char *block; } Head; /* in a page of its own, before the block's first page */

static char *arena, *next;
static volatile int armed;
static volatile long reads, writes;

static int inside(const void *p) { return arena && (char *)p >= arena && (char *)p < arena + ARENA; }

static Head *head_of(const void *p) { /* the block begins in the page after its head */
    return (Head *)(((uintptr_t)p & ~(uintptr_t)(PAGE - 1)) - PAGE);
}

static void on_fault(int number, siginfo_t *info, void *context) {
    char *page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1));
    if (number == SIGSEGV && inside(info->si_addr)) {
        int writing = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
        __atomic_add_fetch(writing ? &writes : &reads, 1, __ATOMIC_SEQ_CST);
        mprotect(page, PAGE, PROT_READ | (writing ? PROT_WRITE : 0));
        return;
    }
    signal(number, SIG_DFL); /* not ours: the instruction runs again and ends the process */
}

static void *fenced(size_t align, size_t size) {
    if (align < 16) align = 16;
    size_t room = (size + align - 1) / align * align; /* so that the block can end at the fence and begin aligned */
    size_t pages = room ? (room + PAGE - 1) / PAGE : 1;
    if (align > PAGE) return NULL;
    char *first = __atomic_fetch_add(&next, (pages + 1) * PAGE + GUARD, __ATOMIC_SEQ_CST);
    if (first + (pages + 1) * PAGE + GUARD > arena + ARENA) return NULL;
    if (mprotect(first, (pages + 1) * PAGE, PROT_READ | PROT_WRITE)) return NULL;
    char *data = first + PAGE, *block = data + pages * PAGE - room;
    memset(data, PATTERN, pages * PAGE);
    *(Head *)first = (Head){pages, size, block};
    mprotect(first, PAGE, PROT_READ);
    return block;
}

static void check(const Head *head) { /* what is not the block's must still hold the pattern */
    unsigned char *data = (unsigned char *)head + PAGE, *block = (unsigned char *)head->block, *end = data + head->pages * PAGE;
    for (unsigned char *p = data; p < block; ++p) if (*p != PATTERN) { __atomic_add_fetch(&writes, 1, __ATOMIC_SEQ_CST); break; }
    for (unsigned char *p = block + head->size; p < end; ++p)
        if (*p != PATTERN) { __atomic_add_fetch(&writes, 1, __ATOMIC_SEQ_CST); break; }
}

static void *allocate(size_t align, size_t size) {
    if (!armed) return __libc_memalign(align, size);
    void *block = fenced(align, size);
    if (!block) abort(); /* nothing may pass unfenced */
    return block;
}

void *memalign(size_t align, size_t size) { return allocate(align, size); }
void *aligned_alloc(size_t align, size_t size) { return allocate(align, size); }
int posix_memalign(void **found, size_t align, size_t size) { return (*found = allocate(align, size)) ? 0 : ENOMEM; }

void free(void *block) {
    if (!inside(block)) { __libc_free(block); return; }
    Head *head = head_of(block);
    check(head);
    size_t length = (head->pages + 1) * PAGE;
    mmap(head, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

size_t malloc_usable_size(void *block) { /* glibc's own: the word before the block, without its flags */
    if (!block) return 0;
    return inside(block) ? head_of(block)->size : (((size_t *)block)[-1] & ~(size_t)7) - sizeof(size_t);
}

void *realloc(void *block, size_t size) {
    if (!inside(block)) return __libc_realloc(block, size);
    void *other = malloc(size);
    size_t old = head_of(block)->size;
    if (other) { memcpy(other, block, old < size ? old : size); free(block); }
    return other;
}

void fence_arm(void) {
    if (!arena) {
        arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) abort();
        next = arena;
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
        sigaction(SIGSEGV, &action, NULL);
    }
    reads = writes = 0;
    armed = 1;
}

void fence_disarm(void) { armed = 0; }
long fence_reads(void) { return reads; }
long fence_writes(void) { return writes; }
