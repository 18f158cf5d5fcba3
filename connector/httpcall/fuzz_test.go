package httpcall

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
)

// FuzzAnswer holds what no provider can talk us into: an answer below 200 or above 299 is never accepted, a server's
// failure counts as a refusal only if it asks to come back, a lost body gives no id, and waits are bounded.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "", "", "", []byte(`{"id":"p-1"}`), false)
	f.Add(200, "", "", "", []byte(`{"ok":false,"error":"ratelimited"}`), false)
	f.Add(200, "", "", "", []byte(`{"data":{"a":{"userErrors":[{}],"id":null}}}`), false)
	f.Add(201, "", "", "", []byte(`{"id":`), true)
	f.Add(409, "3", "", "", []byte(`{"error":{"code":"idempotency_key_in_use"}}`), false)
	f.Add(429, "Fri, 31 Dec 9999 23:59:59 GMT", "", "", []byte(``), false)
	f.Add(403, "", "0", "99999999999999999999", []byte(`{}`), false)
	f.Add(503, "1e400", "0", "2026-01-01T00:00:00Z", []byte(`<html>`), false)
	f.Add(503, "NaN", "0", "-1", []byte(`{"error":"insufficient_quota"}`), false)
	f.Add(207, "-0", "", "", []byte("{\"id\":\"\\u0000\"}"), false)
	c := &Connector{cfg: Config{Name: "crm", ProviderID: "/id"}, now: func() time.Time { return time.Unix(1_800_000_000, 0) }}
	f.Fuzz(func(t *testing.T, status int, retry, remaining, reset string, body []byte, cut bool) {
		a := answer{status: status, header: http.Header{"Retry-After": {retry}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset}}, body: body, cut: cut}
		if cut {
			a.body = nil
		}
		o := c.classify(a)
		require.Equal(t, o, c.classify(a))
		require.GreaterOrEqual(t, o.RetryAfter, time.Duration(0))
		require.LessOrEqual(t, o.RetryAfter, maxRetryAfter)
		require.Equal(t, o.ProviderID, fitID(o.ProviderID))
		switch o.Result {
		case holdpoint.Accepted:
			require.True(t, status >= 200 && status <= 299 && status != http.StatusMultiStatus)
			require.True(t, o.ProviderID != "" || o.Class == holdpoint.ClassUnreferenced)
		case holdpoint.Rejected:
			require.NotEmpty(t, o.Class)
			require.NotEqual(t, holdpoint.ClassAmbiguous, o.Class)
			if status >= 500 {
				require.Equal(t, holdpoint.ClassThrottled, o.Class)
			}
		default:
			require.Equal(t, holdpoint.Unclear, o.Result)
			require.NotEmpty(t, o.Class)
			require.Empty(t, o.ProviderID)
		}
	})
}
