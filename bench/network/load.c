/* Both sides of the network benchmark, so lean that what lies between them is measured.
 *
 * serve RESOLVER             answers names (nK.anything has the K-th address after RESOLVER's network's 256th), HTTP on
 *                            port 80 with the address that was asked, and on port 9000 what the first byte wants:
 *                            1 an echo, 2 bytes without end, 3 an eater of bytes
 * connect ADDRESS COUNT      nanoseconds of each connection and its first echo
 * bulk MODE ADDRESS N SECONDS  bytes a second of N connections, MODE 2 (down) or 3 (up)
 * http HOST ADDRESS N SECONDS  N threads: connect, ask, read to the end; nanoseconds of each
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ECHO = 1, DOWN = 2, UP = 3, PART = 1 << 18 };
static char part[PART];
static uint64_t ends;

static uint64_t now(void) {
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ull + at.tv_nsec;
}

static void fail(const char *what) {
	perror(what);
	exit(1);
}

static void begin(void *(*work)(void *), void *with) {
	pthread_attr_t small;
	pthread_t thread;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 16);
	pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &small, work, with)) fail("thread");
}

/* --- the server --- */

static void *bulk_one(void *with) {
	int fd = (intptr_t)with, none = 1;
	char mode = 0;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &none, sizeof none);
	if (recv(fd, &mode, 1, 0) == 1) {
		if (mode == ECHO) send(fd, &mode, 1, 0);
		while (mode == DOWN && send(fd, part, sizeof part, 0) > 0) {}
		/* Bytes that are only counted are not copied. */
		while (recv(fd, part, sizeof part, MSG_TRUNC) > 0) {}
	}
	close(fd);
	return 0;
}

static void *http_one(void *with) {
	int fd = (intptr_t)with;
	char head[4096], body[64], answer[256];
	size_t have = 0;
	ssize_t got;
	struct sockaddr_in at;
	socklen_t size = sizeof at;
	getsockname(fd, (void *)&at, &size);
	inet_ntop(AF_INET, &at.sin_addr, body, sizeof body);
	while (have < sizeof head - 1 && (got = recv(fd, head + have, sizeof head - 1 - have, 0)) > 0) {
		head[have += got] = 0;
		if (!strstr(head, "\r\n\r\n")) continue;
		int length = snprintf(answer, sizeof answer, "HTTP/1.1 200 OK\r\ncontent-length: %zu\r\nconnection: close\r\n\r\n%s",
			strlen(body), body);
		send(fd, answer, length, 0);
		break;
	}
	close(fd);
	return 0;
}

struct place {
	int port;
	void *(*work)(void *);
};

static void *accepting(void *with) {
	struct place *place = with;
	int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(place->port)};
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (bind(fd, (void *)&at, sizeof at) || listen(fd, 4096)) fail("listen");
	if (place->port == 80) write(1, "ready\n", 6);
	for (;;) {
		int one = accept(fd, 0, 0);
		if (one >= 0) begin(place->work, (void *)(intptr_t)one);
	}
	return 0;
}

static void names(struct in_addr resolver) {
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(53), .sin_addr = resolver}, from;
	if (bind(fd, (void *)&at, sizeof at)) fail("resolver");
	for (;;) {
		unsigned char packet[1500];
		socklen_t size = sizeof from;
		ssize_t got = recvfrom(fd, packet, 512, 0, (void *)&from, &size);
		if (got < 18) continue;
		ssize_t end = 12;
		while (end < got && packet[end]) end += 1 + packet[end];
		if (end + 5 > got) continue;
		int addressed = packet[end + 2] == 1, known = (packet[13] | 32) == 'n';
		uint32_t address = htonl((ntohl(resolver.s_addr) & 0xffff0000) + 256 + atoi((char *)packet + 14));
		packet[2] = 0x81, packet[3] = known ? 0x80 : 0x83;
		memset(packet + 6, 0, 6);
		packet[7] = known && addressed;
		end += 5;
		if (packet[7]) {
			static const unsigned char record[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4};
			memcpy(packet + end, record, sizeof record);
			memcpy(packet + end + sizeof record, &address, 4);
			end += sizeof record + 4;
		}
		sendto(fd, packet, end, 0, (void *)&from, size);
	}
}

/* --- the client --- */

static struct sockaddr_in far;
static const char *host;
static char mode;
static atomic_ullong moved, done;

static int reach(void) {
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (void *)&far, sizeof far)) fail("connect");
	return fd;
}

static void connects(int count) {
	for (int each = 0; each < count; each++) {
		uint64_t begun = now();
		int fd = reach();
		char byte = ECHO;
		if (send(fd, &byte, 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1) fail("echo");
		printf("%llu\n", (unsigned long long)(now() - begun));
		close(fd);
	}
}

static void *bulk(void *with) {
	int fd = reach();
	(void)with;
	send(fd, &mode, 1, 0);
	while (now() < ends) {
		ssize_t count = mode == DOWN ? recv(fd, part, sizeof part, MSG_TRUNC) : send(fd, part, sizeof part, 0);
		if (count <= 0) fail("bulk");
		moved += count;
	}
	close(fd);
	done++;
	return 0;
}

static void *asking(void *with) {
	char said[256], got[1024];
	int length = snprintf(said, sizeof said, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host);
	(void)with;
	while (now() < ends) {
		uint64_t begun = now();
		int fd = reach();
		ssize_t count, all = 0;
		send(fd, said, length, 0);
		while ((count = recv(fd, got + all, sizeof got - 1 - all, 0)) > 0) all += count;
		got[all] = 0;
		if (strncmp(got, "HTTP/1.1 200", 12)) fail("answer");
		close(fd);
		printf("%llu\n", (unsigned long long)(now() - begun));
	}
	done++;
	return 0;
}

int main(int count, char **said) {
	signal(SIGPIPE, SIG_IGN);
	if (count == 3 && !strcmp(said[1], "serve")) {
		static struct place bulks = {9000, bulk_one}, web = {80, http_one};
		struct in_addr resolver;
		inet_pton(AF_INET, said[2], &resolver);
		begin(accepting, &bulks);
		begin(accepting, &web);
		names(resolver);
	}
	if (count < 4) return 2;
	int is_http = !strcmp(said[1], "http"), threads = count > 4 ? atoi(said[4]) : 0;
	far.sin_family = AF_INET, far.sin_port = htons(is_http ? 80 : 9000);
	if (!strcmp(said[1], "connect")) {
		inet_pton(AF_INET, said[2], &far.sin_addr);
		connects(atoi(said[3]));
		return 0;
	}
	host = said[2], mode = atoi(said[2]);
	inet_pton(AF_INET, said[3], &far.sin_addr);
	uint64_t begun = now();
	ends = begun + (uint64_t)(atof(said[5]) * 1e9);
	for (int each = 0; each < threads; each++) begin(is_http ? asking : bulk, 0);
	while (done < (unsigned)threads) usleep(1000);
	if (!is_http) printf("%.0f\n", moved / ((now() - begun) / 1e9));
	return 0;
}
