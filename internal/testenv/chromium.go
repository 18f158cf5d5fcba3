package testenv

import "testing"

// ChromiumFlags are what a headless Chromium needs to run as any user, root included, without asking the network for
// anything that the test did not ask for. Each run also takes a --user-data-dir of its own.
var ChromiumFlags = []string{
	"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
	"--disable-background-networking", "--disable-component-update", "--disable-sync",
}

// Chromium returns the path of the browser; when there is none, the test fails.
func Chromium(t testing.TB) string {
	t.Helper()
	path, err := lookPath("chromium", "/usr/bin/chromium", "chromium-browser", "google-chrome")
	if err != nil {
		t.Fatalf("testenv: no browser, and tests may not pass without it: %v", err)
	}
	return path
}
