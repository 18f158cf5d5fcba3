package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/holdpoint/holdpoint"
)

// The limits of a Limiter made with zero values.
const (
	DefaultRate  = 500  // calls per second and caller
	DefaultBurst = 1000 // calls at once
	limiterSize  = 10_000
)

// Limiter bounds how often each caller may call. It keeps one token bucket per caller, in memory, for a bounded number
// of callers; while the table is full of active callers, those it does not know share one bucket. It is safe for
// concurrent use.
type Limiter struct {
	rate  rate.Limit
	burst int
	size  int

	mu      sync.Mutex
	callers map[string]*bucket
	others  *rate.Limiter
	swept   time.Time
}

type bucket struct {
	*rate.Limiter
	last time.Time
}

// NewLimiter makes a limiter; zero or less means DefaultRate and DefaultBurst.
func NewLimiter(perSecond float64, burst int) *Limiter {
	if perSecond <= 0 {
		perSecond = DefaultRate
	}
	if burst <= 0 {
		burst = DefaultBurst
	}
	l := &Limiter{rate: rate.Limit(perSecond), burst: burst, size: limiterSize, callers: map[string]*bucket{}}
	l.others = rate.NewLimiter(l.rate, l.burst)
	return l
}

// Allow takes one call of a caller, or says rate_limited with the seconds to wait. A refused call takes nothing.
func (l *Limiter) Allow(caller string) error { return l.allow(caller, time.Now()) }

func (l *Limiter) allow(caller string, now time.Time) error {
	r := l.bucket(caller, now).ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	r.CancelAt(now)
	return holdpoint.Errorf(holdpoint.CodeRateLimited, "Too many calls; wait as long as Retry-After says and call again.").With("retry_after", RetrySeconds(wait))
}

func (l *Limiter) bucket(caller string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.callers[caller]
	if b == nil {
		if len(l.callers) >= l.size && !l.evict(now) {
			return l.others
		}
		b = &bucket{Limiter: rate.NewLimiter(l.rate, l.burst)}
		l.callers[caller] = b
	}
	b.last = now
	return b.Limiter
}

// evict forgets callers whose bucket is full again: a new one would be the same. It reports whether there is room.
func (l *Limiter) evict(now time.Time) bool {
	if now.Sub(l.swept) < time.Second {
		return false
	}
	l.swept = now
	refill := time.Duration(float64(l.burst) / float64(l.rate) * float64(time.Second))
	for caller, b := range l.callers {
		if now.Sub(b.last) >= refill {
			delete(l.callers, caller)
		}
	}
	return len(l.callers) < l.size
}

// Address names the caller of a request by its network address, an IPv6 network of 64 bits being one caller.
func Address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return "address unknown"
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		network, _ := ip.Prefix(64)
		return "address " + network.String()
	}
	return "address " + ip.String()
}
