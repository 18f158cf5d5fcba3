package httpcall

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/internal/egress"
)

func connectorTo(t *testing.T, url string, change func(*Config)) *Connector {
	t.Helper()
	cfg := Config{
		Name: "crm",
		Render: func(connector.Vars) (Wire, error) {
			return Wire{Method: "POST", URL: url, Body: []byte("{}"), Header: map[string]string{"Idempotency-Key": "k"}}, nil
		},
		WireHash:   func(connector.Vars) (string, error) { return "h", nil },
		ProviderID: "/id",
		Timeout:    5 * time.Second,
		Guard:      &egress.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}
	if change != nil {
		change(&cfg)
	}
	c := New(cfg)
	t.Cleanup(c.Close)
	return c
}

func sendOnce(t *testing.T, c *Connector, before time.Time) holdpoint.Outcome {
	t.Helper()
	call, err := c.Prepare(connector.Vars{})
	require.NoError(t, err)
	return call.Send(context.Background(), before)
}

func TestTLS(t *testing.T) {
	var arrived atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == 2 {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, `{"id":"`+r.Proto+`"}`)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()

	distrusted := sendOnce(t, connectorTo(t, s.URL, nil), time.Now().Add(time.Minute))
	require.Equal(t, holdpoint.Rejected, distrusted.Result)
	require.Equal(t, holdpoint.PhaseConnect, distrusted.Phase)
	require.Equal(t, holdpoint.ClassTLS, distrusted.Class)
	require.Zero(t, arrived.Load())

	var deadline time.Time
	c := connectorTo(t, s.URL, func(cfg *Config) {
		cfg.Reach = func(string) { time.Sleep(time.Until(deadline)) }
	})
	c.roots = x509.NewCertPool()
	c.roots.AddCert(s.Certificate())

	deadline = time.Now().Add(50 * time.Millisecond)
	late := sendOnce(t, c, deadline)
	require.Equal(t, holdpoint.PhaseLocal, late.Phase)
	require.Equal(t, holdpoint.ClassLocalDeadline, late.Class)
	require.Zero(t, arrived.Load())

	first := sendOnce(t, c, time.Now().Add(time.Minute))
	require.Equal(t, holdpoint.Accepted, first.Result, first.Detail)
	require.Equal(t, "HTTP/1.1", first.ProviderID)

	lost := sendOnce(t, c, time.Now().Add(time.Minute))
	require.Equal(t, holdpoint.Unclear, lost.Result)
	require.Equal(t, holdpoint.PhaseWritten, lost.Phase)
	require.Equal(t, int32(2), arrived.Load(), "the request was sent again")

	wrongName := connectorTo(t, strings.Replace(s.URL, "127.0.0.1", "localhost", 1), func(cfg *Config) {
		cfg.Guard.Allow = append(cfg.Guard.Allow, netip.MustParsePrefix("::1/128"))
	})
	wrongName.roots = c.roots
	require.Equal(t, holdpoint.ClassTLS, sendOnce(t, wrongName, time.Now().Add(time.Minute)).Class)
}

func TestTLSAgainstPlainText(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	o := sendOnce(t, connectorTo(t, strings.Replace(s.URL, "http:", "https:", 1), nil), time.Now().Add(time.Minute))
	require.Equal(t, holdpoint.Rejected, o.Result)
	require.Equal(t, holdpoint.PhaseConnect, o.Phase)
	require.Equal(t, holdpoint.ClassConnect, o.Class)
}

// An answer that is there before the request was sent belongs to something else.
func TestAnswerBeforeTheRequestIsNotBelieved(t *testing.T) {
	start := func() (*conn, *exchange, net.Conn) {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
		w := &wire{Conn: near}
		now := time.Now()
		return &conn{Conn: w, wire: w, reading: true}, newExchange(now, now.Add(time.Minute), nil), far
	}
	buf := make([]byte, 8)

	c, x, _ := start()
	c.reading = false // the transport holds bytes that it has not looked at
	c.bind(x)
	_, err := c.Write([]byte("POST"))
	require.ErrorIs(t, err, errStray, "they could pass for the answer")

	c, _, far := start()
	go func() { _, _ = io.WriteString(far, "HTTP/1.1") }()
	n, err := c.Read(buf)
	require.ErrorIs(t, err, errStray, "nobody has asked")
	require.Zero(t, n)

	c, x, far = start()
	c.bind(x)
	go func() { _, _ = io.WriteString(far, "HTTP/1.1") }()
	_, err = c.Read(buf)
	require.ErrorIs(t, err, errStray, "nothing was written yet")

	c, x, far = start()
	c.bind(x)
	go func() {
		_, _ = io.ReadFull(far, make([]byte, 4))
		_, _ = io.WriteString(far, "HTTP/1.1")
	}()
	_, err = c.Write([]byte("POST"))
	require.NoError(t, err)
	n, err = c.Read(buf)
	require.NoError(t, err)
	require.Equal(t, 8, n)
	require.True(t, x.heard)
	require.EqualValues(t, 4, x.sent)

	c.release(x)
	_, err = c.Write([]byte("POST"))
	require.ErrorIs(t, err, errUnbound)
}

func TestDeadlineHoldsOnBothClocks(t *testing.T) {
	now := time.Now()
	x := newExchange(now, now.Add(time.Second).Round(0), nil)
	require.False(t, x.late(now.Add(999*time.Millisecond)))
	require.True(t, x.late(now.Add(time.Second)))
	// A wall clock that jumped on while the monotonic clock stood still, as after a suspend.
	require.True(t, x.late(now.Round(0).Add(time.Hour)))
	// A wall clock that was set back does not extend the deadline: the monotonic clock goes on.
	x.wall = x.wall.Add(time.Hour)
	require.True(t, x.late(now.Add(2*time.Second)))
	require.True(t, newExchange(now, time.Time{}, nil).late(now))
}

func TestClassifyReadsTheBody(t *testing.T) {
	const accepted, rejected, unclear = holdpoint.Accepted, holdpoint.Rejected, holdpoint.Unclear
	exhausted := http.Header{"X-Ratelimit-Remaining": {"0"}}
	tests := []struct {
		name   string
		status int
		header http.Header
		body   string
		class  holdpoint.FailureClass
		result holdpoint.Result
	}{
		{"Stripe key conflict", 400, nil, `{"error":{"type":"idempotency_error"}}`, holdpoint.ClassKeyConflict, unclear},
		{"Stripe key in use", 409, nil, `{"error":{"type":"invalid_request_error","code":"idempotency_key_in_use"}}`, holdpoint.ClassInProgress, unclear},
		{"Square key reused", 400, nil, `{"errors":[{"code":"IDEMPOTENCY_KEY_REUSED"}]}`, holdpoint.ClassKeyConflict, unclear},
		{"Zendesk mismatch", 400, nil, `{"error":"IdempotentRequestError"}`, holdpoint.ClassKeyConflict, unclear},
		{"Resend concurrent", 409, nil, `{"name":"concurrent_idempotent_requests"}`, holdpoint.ClassInProgress, unclear},
		{"PayPal duplicate", 422, nil, `{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"DUPLICATE_INVOICE_ID"}]}`, holdpoint.ClassAlreadyExists, unclear},
		{"Salesforce duplicate", 400, nil, `[{"errorCode":"DUPLICATE_VALUE"}]`, holdpoint.ClassAlreadyExists, unclear},
		{"Salesforce session", 401, nil, `[{"errorCode":"INVALID_SESSION_ID"}]`, holdpoint.ClassCredentials, rejected},
		{"OpenAI quota", 429, nil, `{"error":{"code":"insufficient_quota"}}`, holdpoint.ClassQuota, rejected},
		{"Gmail rate", 403, nil, `{"error":{"errors":[{"reason":"userRateLimitExceeded"}],"code":403}}`, holdpoint.ClassThrottled, rejected},
		{"GitHub rate", 403, exhausted, `{"message":"limit"}`, holdpoint.ClassThrottled, rejected},
		{"nothing remains, but not the reason", 422, exhausted, `{}`, holdpoint.ClassInvalidData, rejected},
		{"a throttle word does not settle a conflict", 409, nil, `{"code":"rate_limited"}`, holdpoint.ClassThrottled, unclear},
		{"a failed server is not believed", 500, nil, `{"error":"invalid_auth"}`, holdpoint.ClassProviderError, unclear},
		{"a code that only looks alike", 400, nil, `{"error":{"message":"idempotency_error"}}`, holdpoint.ClassInvalidData, rejected},
		{"529 with a time", 529, http.Header{"Retry-After": {"5"}}, "", holdpoint.ClassThrottled, rejected},
		{"529 without", 529, nil, "", holdpoint.ClassOverloaded, unclear},
		{"502 with a time", 502, http.Header{"Retry-After": {"5"}}, "", holdpoint.ClassOverloaded, unclear},
		{"425", 425, nil, "", holdpoint.ClassThrottled, rejected},
		{"303", 303, nil, "", holdpoint.ClassRedirect, unclear},
		{"302 is how many frameworks answer a form that they took", 302, nil, "", holdpoint.ClassRedirect, unclear},
		{"301", 301, nil, "", holdpoint.ClassRedirect, rejected},
		{"418", 418, nil, "", holdpoint.ClassInvalidData, rejected},
		{"101", 101, nil, "", holdpoint.ClassAmbiguous, unclear},
		{"700", 700, nil, "", holdpoint.ClassAmbiguous, unclear},
		{"accepted", 201, nil, `{"id":17}`, holdpoint.ClassNone, accepted},
		{"204 has no id", 204, nil, "", holdpoint.ClassUnreferenced, accepted},
		{"unfit id", 200, nil, `{"id":"a\u0000b"}`, holdpoint.ClassUnreferenced, accepted},
		{"Slack says no", 200, nil, `{"ok":false,"error":"invalid_auth"}`, holdpoint.ClassCredentials, rejected},
		{"Slack is not sure", 200, nil, `{"ok":false,"error":"fatal_error"}`, holdpoint.ClassProviderError, unclear},
		{"Slack says something new", 200, nil, `{"ok":false,"error":"brand_new"}`, holdpoint.ClassProviderError, unclear},
		{"Slack says yes", 200, nil, `{"ok":true,"id":"m1"}`, holdpoint.ClassNone, accepted},
		{"GraphQL throttled", 200, nil, `{"errors":[{"extensions":{"code":"THROTTLED"}}]}`, holdpoint.ClassThrottled, rejected},
		{"GraphQL error", 200, nil, `{"errors":[{"message":"no"}]}`, holdpoint.ClassProviderError, unclear},
		{"Shopify user error", 200, nil, `{"data":{"create":{"userErrors":[{"message":"no"}]}}}`, holdpoint.ClassInvalidData, rejected},
		{"GraphQL throttled, nothing done", 200, nil, `{"data":null,"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{}}}`, holdpoint.ClassThrottled, rejected},
		{"GraphQL throttled after it did something", 200, nil, `{"data":{"create":{"id":"1"}},"errors":[{"extensions":{"code":"THROTTLED"}}]}`, holdpoint.ClassThrottled, unclear},
		{"an item of a list was throttled", 200, nil, `{"created":[{"id":"1"}],"errors":[{"code":"rate_limited"}]}`, holdpoint.ClassThrottled, unclear},
		{"one mutation refused, the other done", 200, nil, `{"data":{"a":{"order":{"id":"1"},"userErrors":[]},"b":{"userErrors":[{"message":"no"}]}}}`, holdpoint.ClassInvalidData, unclear},
		{"one mutation done although it complains", 200, nil, `{"data":{"a":{"order":{"id":"1"},"userErrors":[{"message":"no"}]}}}`, holdpoint.ClassInvalidData, unclear},
		{"one mutation refused, the other without an answer", 200, nil, `{"data":{"a":null,"b":{"userErrors":[{"message":"no"}]}}}`, holdpoint.ClassInvalidData, unclear},
		{"Shopify user error as it looks", 200, nil, `{"data":{"create":{"__typename":"P","order":null,"userErrors":[{"message":"no"}]}},"extensions":{}}`, holdpoint.ClassInvalidData, rejected},
		{"no errors", 200, nil, `{"id":"1","errors":[],"data":{"create":{"userErrors":[]}}}`, holdpoint.ClassNone, accepted},
	}
	c := New(Config{ProviderID: "/id"})
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			o := c.classify(answer{status: tc.status, header: tc.header, body: []byte(tc.body)})
			require.Equal(t, tc.class, o.Class)
			require.Equal(t, tc.result, o.Result)
			require.Equal(t, holdpoint.PhaseComplete, o.Phase)
			require.Equal(t, tc.status, o.Status)
		})
	}
	require.Equal(t, "17", c.classify(answer{status: 200, body: []byte(`{"id":17}`)}).ProviderID)
}

// Whatever a provider answers: only a success status is accepted, nothing that may be committed is called rejected, and
// the outcome is complete.
func TestClassifyFailsClosed(t *testing.T) {
	c := New(Config{})
	codes := []string{"brand_new"}
	for code := range signals {
		codes = append(codes, code)
	}
	rapid.Check(t, func(t *rapid.T) {
		status := rapid.IntRange(100, 999).Draw(t, "status")
		code := rapid.SampledFrom(codes).Draw(t, "code")
		body := rapid.SampledFrom([]string{"", "null", "[]", `{"error":"` + code + `"}`, `{"ok":false,"code":"` + code + `"}`}).Draw(t, "body")
		h := http.Header{}
		if rapid.Bool().Draw(t, "retry") {
			h.Set("Retry-After", "1")
		}
		a := answer{status: status, header: h, body: []byte(body), cut: rapid.Bool().Draw(t, "cut")}
		o := c.classify(a)
		success := status >= 200 && status <= 299 && status != 207
		timed := (status == 503 || status == 529) && h.Get("Retry-After") != ""
		switch {
		case o.Result == holdpoint.Accepted && !success:
			t.Fatalf("%d accepted", status)
		case o.Result == holdpoint.Rejected && !timed && (status >= 500 || status == 408 || status == 409 || status == 207 || status < 200):
			t.Fatalf("%d rejected", status)
		case o.Result != holdpoint.Accepted && o.Class == holdpoint.ClassNone:
			t.Fatalf("%d %s without class", status, o.Result)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		h     map[string]string
		after time.Duration
		named bool
	}{
		{"none", nil, 0, false},
		{"seconds", map[string]string{"Retry-After": "30"}, 30 * time.Second, true},
		{"fraction", map[string]string{"Retry-After": " 1.5 "}, 1500 * time.Millisecond, true},
		{"negative", map[string]string{"Retry-After": "-5"}, 0, true},
		{"zero", map[string]string{"Retry-After": "0"}, 0, true},
		{"absurd", map[string]string{"Retry-After": "99999999999999999999"}, maxRetryAfter, true},
		{"infinite", map[string]string{"Retry-After": "-Inf"}, 0, true},
		{"not a number", map[string]string{"Retry-After": "NaN"}, 0, false},
		{"date", map[string]string{"Retry-After": "Sun, 01 Mar 2026 12:01:00 GMT"}, time.Minute, true},
		{"past date", map[string]string{"Retry-After": "Sun, 01 Mar 2020 12:01:00 GMT"}, 0, true},
		{"words", map[string]string{"Retry-After": "soon"}, 0, false},
		{"reset in epoch", map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1772366460"}, time.Minute, false},
		{"reset in seconds", map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": "60"}, time.Minute, false},
		{"reset as date", map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "2026-03-01T12:01:00Z"}, time.Minute, false},
		{"reset without need", map[string]string{"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "60"}, 0, false},
		{"retry-after wins", map[string]string{"Retry-After": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60"}, 2 * time.Second, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			h := http.Header{}
			for k, v := range tc.h {
				h.Set(k, v)
			}
			got := retryAfter(h, now)
			require.Equal(t, tc.after, got.after)
			require.Equal(t, tc.named, got.named)
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		h := http.Header{}
		h.Set("Retry-After", rapid.String().Draw(t, "after"))
		h.Set("X-RateLimit-Remaining", "0")
		h.Set("X-RateLimit-Reset", rapid.OneOf(rapid.String(), rapid.Map(rapid.Float64(), func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) })).Draw(t, "reset"))
		if got := retryAfter(h, now).after; got < 0 || got > maxRetryAfter {
			t.Fatalf("%v", got)
		}
	})
}

func TestPointer(t *testing.T) {
	doc := decode([]byte(`{"a":{"b/c":[10,{"~":"x"}],"":true},"n":12345678901234567890}`))
	for pointer, want := range map[string]string{
		"/a/b~1c/0": "10", "/a/b~1c/1/~0": "x", "/n": "12345678901234567890",
		"": "", "a": "", "/a": "", "/a/": "", "/a/b~1c/2": "", "/a/b~1c/-1": "", "/a/b~1c/00": "", "/a/b~1c/0/0": "", "/z": "",
	} {
		require.Equal(t, want, textAt(doc, pointer), pointer)
	}
	for _, body := range []string{"", "{", "{} {}", "<html>", "{}x"} {
		require.Nil(t, decode([]byte(body)), body)
	}
	require.Empty(t, providerID(decode([]byte(`"`+strings.Repeat("a", 256)+`"`)), ""))
}
