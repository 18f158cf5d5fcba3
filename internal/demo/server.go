package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/holdpoint/holdpoint"
)

// server is a holdpoint server in a process of its own, so that it can be killed.
type server struct {
	binary, dir, listen string
	cmd                 *exec.Cmd
}

// start runs the server and waits until it is ready.
func (s *server) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.binary, "serve")
	s.cmd.Dir = s.dir
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "AI_ACTIONS_ENABLED=true", "HOLDPOINT_LISTEN=" + s.listen, "HOLDPOINT_EGRESS_ALLOW=127.0.0.0/8"}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd, started, ended := s.cmd, make(chan error, 1), make(chan struct{})
	go func() {
		// The death signal belongs to the thread that started the child: it must live as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed on purpose; what it said is in its log
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	deadline := time.Now().Add(15 * time.Second)
	for time.Now().Before(deadline) {
		if resp, err := http.Get("http://" + s.listen + "/readyz"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(filepath.Join(s.dir, "server.log"))
			return fmt.Errorf("the server ended at once: %s", text)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return errors.New("the server did not become ready in 15s")
}

// kill ends the server as a power cut would.
func (s *server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGKILL)
	s.gone()
}

func (s *server) stop() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	if !s.gone() {
		s.kill()
	}
}

// gone waits until the process has ended; false if it has not in ten seconds.
func (s *server) gone() bool {
	for range 500 {
		if s.cmd.Process.Signal(syscall.Signal(0)) != nil {
			return true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

// caller speaks to the server as one machine or person.
type caller struct{ base, token string }

// call makes one request. Status codes of Holdpoint's own answers are no errors here: the caller looks at them.
func (c *caller) call(ctx context.Context, method, path string, in, out any) (int, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, err
	}
	if out != nil && len(raw) > 0 {
		if err := json.Unmarshal(raw, out); err != nil {
			return resp.StatusCode, fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, raw)
		}
	}
	return resp.StatusCode, nil
}

// expect makes a request that must be answered with one status.
func (c *caller) expect(ctx context.Context, status int, method, path string, in, out any) error {
	var raw json.RawMessage
	got, err := c.call(ctx, method, path, in, &raw)
	if err != nil {
		return err
	}
	if got != status {
		return fmt.Errorf("%s %s answered %d instead of %d: %s", method, path, got, status, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// The answers, as far as the demo reads them.
type claimed struct {
	status  int
	Outcome holdpoint.ClaimOutcome `json:"outcome"`
	Run     holdpoint.Run          `json:"run"`
	Lease   *holdpoint.Lease       `json:"lease"`
}

type drafted struct {
	status       int
	Outcome      string              `json:"outcome"`
	Approval     *holdpoint.Approval `json:"approval"`
	RepairPrompt string              `json:"repair_prompt"`
}

type runView struct {
	holdpoint.Run
	Approvals []holdpoint.Approval `json:"approvals"`
	Effects   []struct {
		holdpoint.Effect
		Planned  bool                `json:"planned"`
		Attempts []holdpoint.Attempt `json:"attempt_log"`
	} `json:"effects"`
	Answers struct {
		Sent      string   `json:"sent"`
		Uncertain []string `json:"uncertain"`
	} `json:"answers"`
}
