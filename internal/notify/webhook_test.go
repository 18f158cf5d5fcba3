package notify_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/egress"
	"github.com/holdpoint/holdpoint/internal/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func loopback() *egress.Guard {
	return &egress.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}
}

func message() notify.Message {
	return notify.Message{
		ID: "5a7c1f0e-1111-4222-8333-944445555666", Type: "approval.requested", Tenant: "acme", Body: []byte(`{"type":"approval.requested"}`),
		To: "ana@acme.example", Subject: "A decision waits", Text: "Send 1 e-mail to jane@acme.example",
		Timestamp: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
}

// verify checks a request as a receiver does, from the specification and not from the code under test.
func verify(t *testing.T, h http.Header, body, key []byte) {
	t.Helper()
	at, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), time.Unix(at, 0), 5*time.Second, "the timestamp is that of the attempt")
	version, signature, found := strings.Cut(h.Get("webhook-signature"), ",")
	require.True(t, found)
	require.Equal(t, "v1", version)
	got, err := base64.StdEncoding.DecodeString(signature)
	require.NoError(t, err)
	mac := hmac.New(sha256.New, key)
	_, _ = io.WriteString(mac, h.Get("webhook-id")+"."+h.Get("webhook-timestamp")+"."+string(body))
	require.True(t, hmac.Equal(mac.Sum(nil), got))
}

func TestWebhookIsSigned(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	for name, secret := range map[string]string{
		"base64": "whsec_" + base64.StdEncoding.EncodeToString(key),
		"raw":    string(key),
	} {
		t.Run(name, func(t *testing.T) {
			var header http.Header
			var body []byte
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				header = r.Header.Clone()
				body, _ = io.ReadAll(r.Body)
				w.WriteHeader(http.StatusNoContent)
			}))
			defer s.Close()
			w := notify.Webhook{URL: s.URL + "/hook", Secret: []byte(secret), Guard: loopback()}
			require.NoError(t, w.Send(context.Background(), message()))
			require.Equal(t, message().Body, body)
			require.Equal(t, message().ID, header.Get("webhook-id"))
			require.Equal(t, "application/json", header.Get("Content-Type"))
			verify(t, header, body, key)
		})
	}
}

func TestWebhookAnswers(t *testing.T) {
	tests := []struct {
		status    int
		permanent bool
		ok        bool
	}{
		{200, false, true}, {202, false, true}, {204, false, true},
		{301, false, false}, {307, false, false},
		{400, false, false}, {401, false, false}, {404, false, false}, {408, false, false}, {429, false, false},
		{410, true, false},
		{500, false, false}, {503, false, false},
	}
	for _, tc := range tests {
		t.Run(strconv.Itoa(tc.status), func(t *testing.T) {
			calls := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++
				w.Header().Set("Location", "/elsewhere")
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(tc.status)
			}))
			defer s.Close()
			err := notify.Webhook{URL: s.URL + "/TOKEN", Secret: []byte("s"), Guard: loopback()}.Send(context.Background(), message())
			require.Equal(t, 1, calls)
			if tc.ok {
				require.NoError(t, err)
				return
			}
			var p *notify.Permanent
			require.Equal(t, tc.permanent, errors.As(err, &p))
			var e *holdpoint.Error
			require.ErrorAs(t, err, &e)
			require.NotContains(t, err.Error(), "TOKEN")
			if tc.status == 503 {
				require.Equal(t, 7, e.Detail["retry_after"])
			}
		})
	}
}

func TestWebhookFailures(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server sees a client that hangs up only after the body
		<-r.Context().Done()
	}))
	defer s.Close()
	good := notify.Webhook{URL: s.URL + "/TOKEN", Secret: []byte("s"), Guard: loopback(), Timeout: 50 * time.Millisecond}
	tests := map[string]struct {
		change    func(*notify.Webhook, *notify.Message)
		code      holdpoint.Code
		permanent bool
	}{
		"timeout":    {func(*notify.Webhook, *notify.Message) {}, holdpoint.CodeUnavailable, false},
		"egress":     {func(w *notify.Webhook, _ *notify.Message) { w.Guard = nil }, holdpoint.CodeUnavailable, false},
		"refused":    {func(w *notify.Webhook, _ *notify.Message) { w.URL = "http://127.0.0.1:1/TOKEN" }, holdpoint.CodeUnavailable, false},
		"no secret":  {func(w *notify.Webhook, _ *notify.Message) { w.Secret = nil }, holdpoint.CodeInvalidPolicy, false},
		"bad secret": {func(w *notify.Webhook, _ *notify.Message) { w.Secret = []byte("whsec_TOKEN!") }, holdpoint.CodeInvalidPolicy, false},
		"scheme":     {func(w *notify.Webhook, _ *notify.Message) { w.URL = "ftp://x/TOKEN" }, holdpoint.CodeInvalidPolicy, false},
		"user":       {func(w *notify.Webhook, _ *notify.Message) { w.URL = "https://u:TOKEN@x/" }, holdpoint.CodeInvalidPolicy, false},
		"id":         {func(_ *notify.Webhook, m *notify.Message) { m.ID = "a.TOKEN" }, holdpoint.CodeInvalidRequest, true},
		"id control": {func(_ *notify.Webhook, m *notify.Message) { m.ID = "a\r\nX: TOKEN" }, holdpoint.CodeInvalidRequest, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := good, message()
			tc.change(&w, &m)
			err := w.Send(context.Background(), m)
			require.ErrorIs(t, err, &holdpoint.Error{Code: tc.code})
			require.NotContains(t, err.Error(), "TOKEN")
			var p *notify.Permanent
			require.Equal(t, tc.permanent, errors.As(err, &p))
		})
	}
}
