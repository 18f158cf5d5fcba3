package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/httpserver"
)

// patience is how long a test waits for what must happen; much longer than anything here takes.
const patience = time.Minute

// listen serves the API as production does, but for what change does to the server, and gives its address.
func (w *world) listen(change func(*http.Server)) string {
	w.Helper()
	s := httpserver.NewServer(httpserver.Wrap(New(w.engine, Options{}), httpserver.Options{}), nil)
	if change != nil {
		change(s)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	w.Cleanup(func() {
		require.NoError(w, s.Close())
		require.ErrorIs(w, <-done, http.ErrServerClosed)
	})
	return l.Addr().String()
}

// dialled is one connection on which a test speaks HTTP by hand.
type dialled struct {
	net.Conn
	w *world
	r *bufio.Reader
}

func (w *world) dial(address string) *dialled {
	w.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(w, err)
	w.Cleanup(func() { _ = c.Close() })
	require.NoError(w, c.SetDeadline(time.Now().Add(patience)))
	return &dialled{c, w, bufio.NewReader(c)}
}

// say writes the head of a request as the machine: its first line and further headers.
func (d *dialled) say(line string, headers ...string) {
	d.w.Helper()
	head := line + " HTTP/1.1\r\nHost: holdpoint\r\nAuthorization: Bearer " + d.w.tokens["machine"] + "\r\n"
	for _, h := range headers {
		head += h + "\r\n"
	}
	_, err := io.WriteString(d, head+"\r\n")
	require.NoError(d.w, err)
}

// pour writes until everything is out or the other side has had enough, and tells how much went out.
func (d *dialled) pour(chunk []byte, times int) <-chan int {
	sent := make(chan int, 1)
	go func() {
		n := 0
		for range times {
			if _, err := d.Write(chunk); err != nil {
				break
			}
			n += len(chunk)
		}
		sent <- n
	}()
	return sent
}

// hears reads one answer.
func (d *dialled) hears(status int) map[string]any {
	d.w.Helper()
	resp, err := http.ReadResponse(d.r, nil)
	require.NoError(d.w, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(d.w, err)
	require.Equal(d.w, status, resp.StatusCode, "%s", body)
	var v map[string]any
	_ = json.Unmarshal(body, &v)
	return v
}

// isClosed waits for the other side to close the connection.
func (d *dialled) isClosed() {
	d.w.Helper()
	_, err := io.Copy(io.Discard, d.r)
	require.NotErrorIs(d.w, err, os.ErrDeadlineExceeded, "the connection is held open")
}

// allocated gives the bytes that the process allocates while fn runs.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const claimHead, jsonHead = "POST /v1/claims", "Content-Type: application/json"

func TestAHugeBodyIsRefused(t *testing.T) {
	w := newWorld(t, Options{})
	address := w.listen(nil)
	megabyte := bytes.Repeat([]byte("x"), 1<<20)
	cost := allocated(func() {
		d := w.dial(address)
		d.say(claimHead, jsonHead, fmt.Sprintf("Content-Length: %d", 50<<20))
		sent := d.pour(megabyte, 50)
		p := d.hears(http.StatusRequestEntityTooLarge)
		require.Equal(t, string(holdpoint.CodeTooLarge), p["code"])
		require.Contains(t, p["detail"], "larger than 1048576 bytes")
		d.isClosed()
		require.Less(t, <-sent, 40<<20, "the rest is not taken")
	})
	require.Less(t, cost, uint64(32<<20), "memory does not grow with the body")

	chunk := append([]byte(fmt.Sprintf("%x\r\n", len(megabyte))), append(megabyte, "\r\n"...)...)
	for _, path := range []string{"/v1/claims", "/v1/claims/batch"} {
		d := w.dial(address)
		d.say("POST "+path, jsonHead, "Transfer-Encoding: chunked")
		sent := d.pour(chunk, 200)
		p := d.hears(http.StatusRequestEntityTooLarge)
		require.Equal(t, string(holdpoint.CodeTooLarge), p["code"], "chunks without end")
		d.isClosed()
		require.Less(t, <-sent, 100<<20)
	}
	w.alive(address)
}

// alive holds that the server goes on serving others.
func (w *world) alive(address string) {
	w.Helper()
	d := w.dial(address)
	d.say("GET /v1/me")
	d.hears(http.StatusOK)
	d.say("GET /healthz")
	d.hears(http.StatusOK)
}

func TestDeepJSONIsRefused(t *testing.T) {
	w := newWorld(t, Options{})
	address := w.listen(nil)
	for levels, code := range map[int]holdpoint.Code{101: holdpoint.CodeTooDeep, 10_000: holdpoint.CodeTooDeep, 500_000: holdpoint.CodeTooDeep} {
		for _, pair := range []string{"[]", `{}`} {
			open := pair[:1]
			if open == "{" {
				open = `{"a":`
			}
			if levels*len(open)+levels > 1<<20-100 {
				continue
			}
			body := `{"workflow":"ticket-reply","key":"k","payload":` + strings.Repeat(open, levels) + "1" + strings.Repeat(pair[1:], levels) + `}`
			var p map[string]any
			cost := allocated(func() {
				d := w.dial(address)
				d.say(claimHead, jsonHead, fmt.Sprintf("Content-Length: %d", len(body)))
				_, err := io.WriteString(d, body)
				require.NoError(t, err)
				p = d.hears(http.StatusBadRequest)
			})
			require.Equal(t, string(code), p["code"])
			require.Contains(t, p["detail"], "100 levels")
			require.Less(t, cost, uint64(16<<20))
		}
	}
	body := `{"claims":[` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `]}`
	r := w.do("machine", "POST", "/v1/claims/batch", body)
	w.refused(r, holdpoint.CodeInvalidJSON)
}

func TestABombIsNotUnpacked(t *testing.T) {
	w := newWorld(t, Options{})
	address := w.listen(nil)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for range 12 {
		_, err := z.Write(make([]byte, 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	for _, encoding := range []string{"gzip", "x-gzip", "deflate", "br", "gzip, gzip"} {
		var p map[string]any
		cost := allocated(func() {
			d := w.dial(address)
			d.say(claimHead, jsonHead, "Content-Encoding: "+encoding, fmt.Sprintf("Content-Length: %d", packed.Len()))
			d.pour(packed.Bytes(), 1)
			p = d.hears(http.StatusUnsupportedMediaType)
		})
		require.Equal(t, string(holdpoint.CodeUnsupportedMedia), p["code"])
		require.Contains(t, p["detail"], "without an encoding")
		require.Less(t, cost, uint64(8<<20))
	}
}

// TestSlowSendersAreDropped opens many connections that never finish their head or their body. Each is closed when its
// time is up, and others are served all the while.
func TestSlowSendersAreDropped(t *testing.T) {
	w := newWorld(t, Options{})
	address := w.listen(func(s *http.Server) {
		s.ReadHeaderTimeout, s.ReadTimeout = 2*time.Second, 3*time.Second
	})
	var heads, bodies []*dialled
	for range 20 {
		d := w.dial(address)
		_, err := io.WriteString(d, "GET /healthz HTTP/1.1\r\nHost: holdpoint\r\nX-Slow: ")
		require.NoError(t, err)
		heads = append(heads, d)
		d = w.dial(address)
		d.say(claimHead, jsonHead, "Content-Length: 1000")
		_, err = io.WriteString(d, `{"workflow":`)
		require.NoError(t, err)
		bodies = append(bodies, d)
	}
	w.alive(address)
	for _, d := range heads {
		d.isClosed()
	}
	for _, d := range bodies {
		p := d.hears(http.StatusBadRequest)
		require.Contains(t, p["detail"], "ended before it was complete")
		d.isClosed()
	}
	w.alive(address)
}

func TestHeadsHaveBounds(t *testing.T) {
	w := newWorld(t, Options{})
	address := w.listen(nil)
	for name, c := range map[string]struct {
		line    string
		headers []string
		status  int
	}{
		"too many headers":  {"GET /healthz", slicesOf("X-Many: 0123456789", 5000), http.StatusRequestHeaderFieldsTooLarge},
		"one huge header":   {"GET /healthz", []string{"X-Huge: " + strings.Repeat("x", 64<<10)}, http.StatusRequestHeaderFieldsTooLarge},
		"a URL too long":    {"GET /v1/runs?key=" + strings.Repeat("x", 64<<10), nil, http.StatusRequestHeaderFieldsTooLarge},
		"a long URL":        {"GET /v1/runs?key=" + strings.Repeat("x", 16<<10), nil, http.StatusBadRequest},
		"a broken chunk":    {claimHead, []string{jsonHead, "Transfer-Encoding: chunked", "", "zz"}, http.StatusBadRequest},
		"another coding":    {claimHead, []string{jsonHead, "Transfer-Encoding: gzip, chunked"}, http.StatusNotImplemented},
		"a negative length": {claimHead, []string{jsonHead, "Content-Length: -1"}, http.StatusBadRequest},
		"two lengths":       {claimHead, []string{jsonHead, "Content-Length: 1", "Content-Length: 2"}, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			d := w.dial(address)
			d.say(c.line, c.headers...)
			d.hears(c.status)
		})
	}
	w.alive(address)
}

func slicesOf(text string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = text
	}
	return all
}

func TestABatchOfTenThousandIsRefused(t *testing.T) {
	w := newWorld(t, Options{})
	one := claimBody("ticket-reply", "N-1")
	r := w.do("machine", "POST", "/v1/claims/batch", `{"claims":[`+strings.Repeat(one+",", 9_999)+one+`]}`)
	w.refused(r, holdpoint.CodeInvalidRequest)
	require.Contains(t, r.json["detail"], "1 to 500 claims")
	require.Empty(t, w.do("machine", "GET", "/v1/runs", "").json["runs"], "none of them is claimed")
}

// TestExpectContinue holds that a body is asked for only from a caller whose call would read it.
func TestExpectContinue(t *testing.T) {
	w := newWorld(t, Options{})
	address := w.listen(nil)
	body := claimBody("ticket-reply", "C-1")
	length := fmt.Sprintf("Content-Length: %d", len(body))
	d := w.dial(address)
	d.say(claimHead, jsonHead, length, "Expect: 100-continue")
	line, err := d.r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
	_, err = d.r.ReadString('\n')
	require.NoError(t, err)
	_, err = io.WriteString(d, body)
	require.NoError(t, err)
	require.Equal(t, "claimed", d.hears(http.StatusCreated)["outcome"])

	d = w.dial(address)
	d.say(claimHead, "Content-Type: text/plain", length, "Expect: 100-continue")
	d.hears(http.StatusUnsupportedMediaType)
	d = w.dial(address)
	d.say(claimHead, jsonHead, fmt.Sprintf("Content-Length: %d", 50<<20), "Expect: 100-continue")
	d.hears(http.StatusRequestEntityTooLarge)
	d = w.dial(address)
	_, err = io.WriteString(d, claimHead+" HTTP/1.1\r\nHost: holdpoint\r\n"+jsonHead+"\r\n"+length+"\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(t, err)
	d.hears(http.StatusUnauthorized)
}
