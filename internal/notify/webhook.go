package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint/internal/egress"
)

// secretPrefix marks a base64 secret, as the Standard Webhooks specification writes it.
const secretPrefix = "whsec_"

// maxAnswer bounds what is read of a receiver's answer, in bytes. The answer's body is ignored.
const maxAnswer = 64 << 10

// Webhook delivers messages as signed POST requests after the Standard Webhooks specification 1.0.0.
type Webhook struct {
	URL     string
	Secret  []byte        // "whsec_" and base64, or any other text taken as it is; required
	Guard   *egress.Guard // nil permits public addresses only
	Timeout time.Duration // 0 means DefaultTimeout
}

// Send delivers m.Body with one request. It follows no redirect. A 2xx answer is delivered; 410 is Permanent; everything
// else may succeed later, and if the receiver asked for a delay in seconds the error has the detail "retry_after".
func (w Webhook) Send(ctx context.Context, m Message) error {
	if !goodID(m.ID) {
		return permanent("the message id cannot be used in a webhook; use a UUID")
	}
	u, err := url.Parse(w.URL)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil {
		return misconfigured("the webhook's URL must be https://host/path without user or password")
	}
	key, err := w.key()
	if err != nil {
		return err
	}
	timeout := w.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(m.Body))
	if err != nil {
		return misconfigured("the webhook's URL must be https://host/path without user or password")
	}
	// The timestamp is that of the attempt: receivers refuse old ones to stop replays.
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header = http.Header{
		"Content-Type":      {"application/json"},
		"User-Agent":        {"Holdpoint"},
		"Webhook-Id":        {m.ID},
		"Webhook-Timestamp": {at},
		"Webhook-Signature": {sign(key, m.ID, at, m.Body)},
	}
	t := w.transport()
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(req)
	if err != nil {
		return unreachable("webhook", err)
	}
	// The status is all that counts; what the body says or how it ends does not matter.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	return judge(resp)
}

// transport serves one request: no reuse, no redirect, no proxy, no resend.
func (w Webhook) transport() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Protocols:              &protocols,
		DialContext:            w.Guard.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswer,
	}
}

func judge(resp *http.Response) error {
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode <= 299:
		return nil
	case resp.StatusCode == http.StatusGone:
		return permanent("the webhook answered 410; it is gone, remove it from the policy")
	case resp.StatusCode >= 300 && resp.StatusCode <= 399:
		return later("the webhook answered %d; redirects are not followed, use its final URL", resp.StatusCode)
	}
	e := later("the webhook answered %d; see the receiver's log", resp.StatusCode)
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e = e.With("retry_after", min(s, 86400))
	}
	return e
}

func (w Webhook) key() ([]byte, error) {
	text, marked := strings.CutPrefix(string(w.Secret), secretPrefix)
	if !marked {
		if len(w.Secret) == 0 {
			return nil, misconfigured("the webhook has no secret; a receiver could not tell its messages from forged ones")
		}
		return w.Secret, nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) == 0 {
		return nil, misconfigured("the webhook's secret begins with whsec_ but is not base64 after it")
	}
	return key, nil
}

// sign gives the value of webhook-signature: one v1 signature over id, timestamp and body.
func sign(key []byte, id, at string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
