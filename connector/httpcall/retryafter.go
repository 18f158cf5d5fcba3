package httpcall

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter is the longest wait that a provider can ask for.
const maxRetryAfter = 24 * time.Hour

// epochFrom tells a reset time in seconds since 1970 from a number of seconds to wait: no provider asks for 30 years.
const epochFrom = 1_000_000_000

// wait is what a response says about when to come back.
type wait struct {
	after     time.Duration // 0 to maxRetryAfter
	named     bool          // a readable Retry-After was there
	exhausted bool          // a rate-limit header says that nothing remains
}

// retryAfter reads Retry-After (seconds or a date, RFC 9110 10.2.3) and, if nothing remains of the rate limit, the reset
// header that GitHub, Jira, SendGrid and others send. What is in the past is 0; what is absurd is cut to 24 hours.
func retryAfter(h http.Header, now time.Time) wait {
	w := wait{exhausted: first(h, "X-RateLimit-Remaining", "RateLimit-Remaining") == "0"}
	if v := first(h, "Retry-After"); v != "" {
		if s, err := strconv.ParseFloat(v, 64); err == nil && !math.IsNaN(s) {
			w.after, w.named = seconds(s), true
		} else if t, err := http.ParseTime(v); err == nil {
			w.after, w.named = clamp(t.Sub(now)), true
		}
	}
	if w.named || !w.exhausted {
		return w
	}
	reset := first(h, "X-RateLimit-Reset", "RateLimit-Reset")
	if s, err := strconv.ParseFloat(reset, 64); err == nil && !math.IsNaN(s) {
		if s >= epochFrom {
			s -= float64(now.Unix())
		}
		w.after = seconds(s)
	} else if t, err := time.Parse(time.RFC3339, reset); err == nil {
		w.after = clamp(t.Sub(now))
	}
	return w
}

func first(h http.Header, names ...string) string {
	for _, n := range names {
		if v := strings.TrimSpace(h.Get(n)); v != "" {
			return v
		}
	}
	return ""
}

func seconds(s float64) time.Duration {
	switch {
	case s <= 0:
		return 0
	case s >= maxRetryAfter.Seconds():
		return maxRetryAfter
	}
	return time.Duration(s * float64(time.Second))
}

func clamp(d time.Duration) time.Duration { return min(max(d, 0), maxRetryAfter) }
