package auth

import (
	"crypto/sha256"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limiter slows down repeated log-ins per key, in memory only: a restart forgets. Its size is bounded whatever keys
// come. It is safe for concurrent use.
//
// It keeps one instant per key, the time at which the key has its whole burst back (the generic cell rate algorithm,
// ITU-T I.371).
type Limiter struct {
	interval time.Duration // one more attempt each
	slack    time.Duration // how far a key may be ahead
	size     int

	mu       sync.Mutex
	whole    map[[sha256.Size]byte]time.Time
	overflow time.Time // fail closed: shared by all new keys while the table is full
	swept    time.Time
}

// NewLimiter makes a Limiter that allows burst attempts at once and perMinute from then on, for at most size keys. While
// the table is full, keys that it does not know share one allowance, so that a flood of names frees nobody. All three
// are at least 1.
func NewLimiter(perMinute, burst, size int) *Limiter {
	interval := time.Minute / time.Duration(atLeastOne(perMinute))
	return &Limiter{
		interval: interval,
		slack:    interval * time.Duration(atLeastOne(burst)-1),
		size:     atLeastOne(size),
		whole:    make(map[[sha256.Size]byte]time.Time),
	}
}

func atLeastOne(n int) int { return max(n, 1) }

// Allow takes one attempt for key, or says after what time to try again. A refused attempt takes nothing.
func (l *Limiter) Allow(key string) (ok bool, retryAfter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	id := sha256.Sum256([]byte(key)) // bounds the size of a key and keeps names out of memory
	whole, known := l.whole[id]
	if !known && l.full(now) {
		l.overflow, ok, retryAfter = l.take(l.overflow, now)
		return ok, retryAfter
	}
	if whole, ok, retryAfter = l.take(whole, now); ok {
		l.whole[id] = whole
	}
	return ok, retryAfter
}

// take returns the new instant of a key after one attempt at now.
func (l *Limiter) take(whole, now time.Time) (time.Time, bool, time.Duration) {
	if whole.Before(now) {
		whole = now
	}
	if wait := whole.Sub(now) - l.slack; wait > 0 {
		return whole, false, wait
	}
	return whole.Add(l.interval), true, 0
}

// full reports whether no further key fits, after forgetting those that have their whole burst back. It looks through
// the table at most once per second.
func (l *Limiter) full(now time.Time) bool {
	if len(l.whole) < l.size {
		return false
	}
	if now.Sub(l.swept) >= time.Second {
		l.swept = now
		for id, whole := range l.whole {
			if !whole.After(now) {
				delete(l.whole, id)
			}
		}
	}
	return len(l.whole) >= l.size
}

// AccountKey is the key of a log-in to the account with this e-mail address, whatever its case.
func AccountKey(email string) string {
	return "account:" + strings.ToLower(strings.TrimSpace(email))
}

// AddressKey is the key of a log-in from remote, which is `host:port` or a bare address. IPv6 addresses count by their
// /64, the least that one subscriber gets. What is no address shares one key.
func AddressKey(remote string) string {
	addr, err := netip.ParseAddr(remote)
	if err != nil {
		port, err := netip.ParseAddrPort(remote)
		if err != nil {
			return "address:unknown"
		}
		addr = port.Addr()
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		return "address:" + netip.PrefixFrom(addr, 64).Masked().String()
	}
	return "address:" + addr.String()
}
