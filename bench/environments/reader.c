// Reads FILE in blocks of 4 KiB, in order or at random places, or of no bytes, and says how fast it went.
// reader FILE seq|random|empty COUNT SEED keep|drop  ->  "BYTES SECONDS P50_NS P99_NS LONGEST_NS SUM"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096 };

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
	return (one > other) - (one < other);
}

int main(int count, char **words)
{
	static unsigned char block[BLOCK];
	struct stat known;
	if (count != 6)
		return 2;
	int fd = open(words[1], O_RDONLY);
	if (fd < 0 || fstat(fd, &known))
		return perror(words[1]), 1;
	if (!strcmp(words[5], "drop"))
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	uint64_t blocks = known.st_size / BLOCK, reads = strtoull(words[3], 0, 10), state = strtoull(words[4], 0, 10) + 1;
	int random = !strcmp(words[2], "random"), size = strcmp(words[2], "empty") ? BLOCK : 0;
	if (!reads || reads > blocks)
		reads = blocks;
	uint64_t *taken = malloc(reads * sizeof *taken), sum = 0, begun = now();
	for (uint64_t turn = 0; turn < reads; turn++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		uint64_t at = random ? (state >> 33) % blocks : turn, from = now();
		if (pread(fd, block, size, at * BLOCK) != size)
			return perror("read"), 1;
		taken[turn] = now() - from;
		sum += block[0] + 256 * block[BLOCK - 1];
	}
	double seconds = (now() - begun) / 1e9;
	qsort(taken, reads, sizeof *taken, by_size);
	printf("%llu %.9f %llu %llu %llu %llu\n", (unsigned long long)reads * size, seconds,
	       (unsigned long long)taken[reads / 2], (unsigned long long)taken[reads * 99 / 100],
	       (unsigned long long)taken[reads - 1], (unsigned long long)sum);
	return 0;
}
