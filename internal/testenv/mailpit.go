package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Mailpit starts a real SMTP server that keeps what it receives and returns its two URLs: smtp://… to send to (no TLS;
// any user name and password, or none), and http://… of its API, where GET /api/v1/messages lists the messages and
// GET /api/v1/message/ID gives one. It stops at the end of the test.
func Mailpit(t testing.TB) (smtpURL, apiURL string) {
	t.Helper()
	bin, err := lookPath(filepath.Join(repository(t), ".cache", "bin", "mailpit"), "mailpit")
	if err == nil {
		err = retry(func() error {
			smtp, api, err := startMailpit(t, bin)
			smtpURL, apiURL = smtp, api
			return err
		})
	}
	if err != nil {
		t.Fatalf("testenv: no mail server, and tests may not pass without it: %v", err)
	}
	return smtpURL, apiURL
}

func startMailpit(t testing.TB, bin string) (smtpURL, apiURL string, err error) {
	dir, err := ownDir(os.TempDir(), "mailpit", nil)
	if err != nil {
		return "", "", err
	}
	smtpPort, err1 := freePort()
	apiPort, err2 := freePort()
	if err := errors.Join(err1, err2); err != nil {
		return "", "", errors.Join(err, os.RemoveAll(dir))
	}
	smtp, api := "127.0.0.1:"+strconv.Itoa(smtpPort), "127.0.0.1:"+strconv.Itoa(apiPort)
	s, err := start(dir, nil, "TERM", []string{
		bin, "--smtp", smtp, "--listen", api, "--database", filepath.Join(dir, "mail.db"),
		"--smtp-auth-accept-any", "--smtp-auth-allow-insecure", "--smtp-disable-rdns",
		"--disable-version-check", "--block-remote-css-and-fonts",
	}, func() error { return healthy("http://" + api + "/readyz") })
	if err != nil {
		return "", "", errors.Join(err, os.RemoveAll(dir))
	}
	t.Cleanup(s.stop)
	return "smtp://" + smtp, "http://" + api, nil
}

// healthy reports why the URL does not answer 200, or nil.
func healthy(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// A transport of its own leaves no idle connection, and so no goroutine, behind in the default one.
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}
