package console

import (
	"context"
	"fmt"
	"image/color"
	"image/png"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/testenv"
)

// screenshots names a directory; with it, every page is pictured there on a phone and a desk, light and dark, in both
// languages. Without it, a few pictures are taken and thrown away.
const screenshots = "HOLDPOINT_SCREENSHOTS"

type shot struct {
	name, path, person string
	width, height      int
	dark               bool
	language           string
}

// The style sheet reaches the browser under the strict policy, in light and in dark, and a page fits a phone.
func TestPagesInABrowser(t *testing.T) {
	chromium := testenv.Chromium(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := newDesk(t, "http://"+listener.Addr().String())
	pages := d.busy()
	cookies := map[string]*http.Cookie{}
	for _, name := range []string{"ana", "ops"} {
		cookies[name] = d.signedIn(name).cookie
	}
	// The browser cannot be given a cookie from outside, so the address says who looks and in which language.
	server := &httptest.Server{Listener: listener, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who := r.URL.Query().Get("who"); cookies[who] != nil {
			r.AddCookie(cookies[who])
		}
		r.Header.Set("Accept-Language", r.URL.Query().Get("in"))
		d.h.ServeHTTP(w, r)
	})}}
	server.Start()
	t.Cleanup(server.Close)

	dir, shots := os.Getenv(screenshots), []shot{
		{"neutral", "/approve/x", "", 390, 844, false, "en"},
		{"card", pages["card"], "ana", 390, 1200, true, "de"},
	}
	if dir == "" {
		dir = t.TempDir()
	} else {
		shots = nil
		for name, path := range pages {
			who := "ops"
			switch name {
			case "login", "neutral":
				who = ""
			case "card", "hostile", "receipt", "inbox":
				who = "ana"
			}
			for i, l := range []string{"en", "de"} {
				height := map[string]int{"card": 4600, "hostile": 4300, "receipt": 4000, "run": 5000}[name]
				shots = append(shots, shot{name, path, who, 390, max(844, height), i == 1, l}, shot{name, path, who, 1280, max(900, height*2/3), i == 0, l})
			}
		}
	}
	for _, s := range shots {
		t.Run(fmt.Sprintf("%s-%d-%s", s.name, s.width, s.language), func(t *testing.T) {
			file := filepath.Join(dir, fmt.Sprintf("%s-%d-%s-%v.png", s.name, s.width, s.language, map[bool]string{true: "dark", false: "light"}[s.dark]))
			d.picture(t, chromium, server.URL+s.path, file, s)
		})
	}
}

// picture takes one screenshot and looks at its ground.
func (d *desk) picture(t *testing.T, chromium, address, file string, s shot) {
	t.Helper()
	scheme := map[bool]string{true: "0", false: "1"}[s.dark]
	sep := "?"
	if strings.Contains(address, "?") {
		sep = "&"
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args := append([]string{}, testenv.ChromiumFlags...)
	args = append(args, "--user-data-dir="+t.TempDir(), "--hide-scrollbars", "--blink-settings=preferredColorScheme="+scheme,
		fmt.Sprintf("--window-size=%d,%d", s.width, s.height), "--screenshot="+file,
		address+sep+url.Values{"who": {s.person}, "in": {s.language}}.Encode())
	out, err := exec.CommandContext(ctx, chromium, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	require.NoError(t, err)
	require.Equal(t, s.width, img.Bounds().Dx())
	ground := color.RGBA{0xf4, 0xf6, 0xf9, 0xff}
	if s.dark {
		ground = color.RGBA{0x0f, 0x14, 0x1b, 0xff}
	}
	r, g, b, _ := img.At(2, img.Bounds().Dy()-3).RGBA()
	require.Equal(t, ground, color.RGBA{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8), 0xff}, "the style sheet counts")
}

// busy is a desk in the middle of a night: something of everything. It gives the paths of the pages.
func (d *desk) busy() map[string]string {
	d.Helper()
	ana := d.signedIn("ana")
	decide := func(id, decision, reason string) {
		path := "/console/approvals/" + id
		require.Equal(d, http.StatusSeeOther, ana.submit(ana.get(path), path, map[string]string{"decision": decision, "reason": reason}).Code)
	}
	d.switchOn()
	sent := d.ask("ticket-reply", "T-4702", "Dear Jane,\n\nyour parcel was handed over on Monday.\n\nKind regards\nAcme Support", nil)
	decide(sent.ID, "approve", "Checked against the order.")
	d.sendAccepted()
	doubtful := d.ask("ticket-reply", "T-4705", "Dear Jane,\n\nwe have cancelled the order.", map[string]any{"note": true})
	decide(doubtful.ID, "approve", "")
	d.sendUnclear()
	gone := d.ask("ticket-reply", "T-4706", "Hello.", nil)
	decide(gone.ID, "reject", "Wrong customer.")
	ops := d.signedIn("ops")
	for _, n := range []string{"tenant"} {
		page := ops.get("/console/switches")
		form := url.Values{"scope": {n}, "on": {"false"}, "reason": {"provider incident"}}
		form.Set("nonce", page.Find("input[name=scope][value="+n+"]").Parent().Find("input[name=nonce]").AttrOr("value", ""))
		require.Equal(d, http.StatusSeeOther, ops.do(http.MethodPost, "/console/switches", form).Code)
	}
	waiting := d.ask("ticket-reply", "T-4707", "Hello, it will arrive tomorrow.", nil)
	decide(waiting.ID, "approve", "")
	d.ask("memo", "T-4708", "Customer prefers calls in the afternoon.", nil)
	hostile := d.ask("ticket-reply", "T-4709", "Please pay to \u202eelpmaxe.emca\u202c or visit \u0430pple.com today.\n<b>Thank you</b>, p\u200bayments team", map[string]any{"subject": "In\u00advoice"})
	card := d.ask("ticket-reply", "T-4711", "Dear Jane,\n\nthank you for your patience. Your parcel left our warehouse this morning and will reach you on Thursday, 5 March.\n\nIf it does not arrive by then, answer this message and we will send a new one at no cost.\n\nKind regards\nAcme Support", map[string]any{"note": true})
	return map[string]string{"login": "/login", "neutral": "/approve/x", "inbox": "/console", "card": "/console/approvals/" + card.ID, "hostile": "/console/approvals/" + hostile.ID,
		"receipt": "/console/approvals/" + sent.ID, "runs": "/console/runs", "run": "/console/runs/" + doubtful.RunID, "unknown": "/console/unknown",
		"switches": "/console/switches", "connectors": "/console/connectors", "people": "/console/people", "policy": "/console/policy", "error": "/console/nothing"}
}
