//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/testenv"
)

// browser is one page of a real Chromium, driven over the DevTools protocol through a pipe.
type browser struct {
	t       testing.TB
	to      *os.File
	from    *os.File
	reader  *bufio.Reader
	session string
	calls   int
}

// newBrowser opens an empty page of a browser that has never been anywhere.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	commands, to, err := os.Pipe()
	require.NoError(t, err)
	from, answers, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(testenv.Chromium(t), append(slices.Clone(testenv.ChromiumFlags), profile(t), "--remote-debugging-pipe")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // its helpers end with it
	cmd.ExtraFiles = []*os.File{commands, answers}                                    // descriptors 3 and 4
	require.NoError(t, cmd.Start())
	require.NoError(t, commands.Close())
	require.NoError(t, answers.Close())
	b := &browser{t: t, to: to, from: from, reader: bufio.NewReader(from)}
	t.Cleanup(func() {
		_ = to.Close()
		_ = from.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	require.NoError(t, b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target))
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	require.NoError(t, b.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached))
	b.session = attached.SessionID
	return b
}

// profile is the flag that gives a browser a directory of its own. A helper of the browser may still write there while it
// is removed, which is no fault of the test.
func profile(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdpoint-browser-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return "--user-data-dir=" + dir
}

// do makes one call and waits for its answer; what the browser tells unasked is passed over.
func (b *browser) do(method string, params map[string]any, into any) error {
	b.t.Helper()
	b.calls++
	message := map[string]any{"id": b.calls, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	out, err := json.Marshal(message)
	require.NoError(b.t, err)
	_, err = b.to.Write(append(out, 0))
	require.NoError(b.t, err)
	require.NoError(b.t, b.from.SetReadDeadline(time.Now().Add(later)))
	for {
		text, err := b.reader.ReadBytes(0)
		require.NoError(b.t, err, "the browser does not answer %s", method)
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		require.NoError(b.t, json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &answer))
		switch {
		case answer.ID != b.calls:
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		case into != nil:
			return json.Unmarshal(answer.Result, into)
		default:
			return nil
		}
	}
}

// open leads to an address.
func (b *browser) open(url string) {
	b.t.Helper()
	require.NoError(b.t, b.do("Page.navigate", map[string]any{"url": url}, nil))
}

// see evaluates an expression in the page. It fails while the page is on its way to another one.
func (b *browser) see(expression string, into any) error {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Text string }
	}
	if err := b.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &answer); err != nil {
		return err
	}
	if answer.ExceptionDetails != nil {
		return fmt.Errorf("%s: %s", expression, answer.ExceptionDetails.Text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer.Result.Value, into)
}

// await waits until an expression is true in a page that has loaded.
func (b *browser) await(expression string) {
	b.t.Helper()
	eventually(b.t, soon, "in the browser: "+expression, func() bool {
		var holds bool
		return b.see(`document.readyState === "complete" && !!(`+expression+")", &holds) == nil && holds
	})
}

// fill types into a field, click presses a button; each is named by a selector of which there is one on the page.
func (b *browser) fill(selector, value string) {
	b.t.Helper()
	b.one(selector)
	require.NoError(b.t, b.see(fmt.Sprintf("document.querySelector(%q).focus()", selector), nil))
	require.NoError(b.t, b.do("Input.insertText", map[string]any{"text": value}, nil))
}

func (b *browser) click(selector string) {
	b.t.Helper()
	b.one(selector)
	require.NoError(b.t, b.see(fmt.Sprintf("document.querySelector(%q).click()", selector), nil))
}

func (b *browser) one(selector string) {
	b.t.Helper()
	b.await(fmt.Sprintf("document.querySelectorAll(%q).length === 1", selector))
}
