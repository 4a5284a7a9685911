package rig

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ironlb/ironlb/test/lab/controlplane"
	"github.com/ironlb/ironlb/test/lab/process"
)

// CCM is a running ironlb-ccm.
type CCM struct {
	*process.Process
	url    string // of its own server, for administrators
	probes string
	http   *http.Client
}

// probesAbove is the offset of the probes' port from the other port.
const probesAbove = 1000

// StartCCM starts the program as its account and returns at once. Replicas need different ports.
func (r *Rig) StartCCM(ctx context.Context, port int, flags ...string) (*CCM, error) {
	return r.StartCCMAs(ctx, r.kubeconfig, port, flags...)
}

// StartCCMAs is StartCCM with the credentials of a file.
func (r *Rig) StartCCMAs(ctx context.Context, kubeconfig string, port int, flags ...string) (*CCM, error) {
	argv := append([]string{r.build.Path("ironlb-ccm"), "--kubeconfig", kubeconfig,
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig, // for Get
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port),
		"--probe-bind-address", "127.0.0.1:" + strconv.Itoa(port+probesAbove)}, flags...)
	p, err := r.run(ctx, "ironlb-ccm", argv...)
	if err != nil {
		return nil, err
	}
	return &CCM{
		Process: p,
		url:     fmt.Sprintf("https://127.0.0.1:%d", port),
		probes:  fmt.Sprintf("http://127.0.0.1:%d", port+probesAbove),
		http: &http.Client{Transport: &bearer{token: r.cp.RESTConfig().BearerToken, next: &http.Transport{
			DialContext:     controlplane.Dialer(r.namespace),
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // a self-signed certificate, on a loopback interface of the rig
		}}},
	}, nil
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(req)
}

// Get reads a page of the program's own server as an administrator.
func (c *CCM) Get(ctx context.Context, path string) ([]byte, error) {
	return c.get(ctx, c.url+path)
}

func (c *CCM) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s: %s", url, res.Status, strings.TrimSpace(string(data)))
	}
	return data, nil
}

// WaitReady polls /readyz.
func (c *CCM) WaitReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.get(ctx, c.probes+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-c.Done():
			return fmt.Errorf("ironlb-ccm is not ready: %w", c.Err())
		case <-ctx.Done():
			return fmt.Errorf("ironlb-ccm is not ready after %s: %w; its last lines:\n%s", limit, err, process.Tail(c.Log, 15))
		case <-tick.C:
		}
	}
}

// Usage is the use of CPU and memory.
type Usage struct {
	CPU  time.Duration // user and system
	Peak int           // resident, bytes, since the start
}

// Usage reads the kernel's counters of the process (proc_pid_stat(5), proc_pid_status(5)).
func (c *CCM) Usage() (Usage, error) {
	dir := fmt.Sprintf("/proc/%d/", c.Pid())
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return Usage{}, fmt.Errorf("read the use of ironlb-ccm: %w", err)
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return Usage{}, fmt.Errorf("read the use of ironlb-ccm: %w", err)
	}
	var u Usage
	_, after, _ := strings.Cut(string(stat), ") ") // the name may have spaces
	const utime, stime, ticksPerSecond = 14 - 3, 15 - 3, 100
	fields := strings.Fields(after)
	for _, i := range []int{utime, stime} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			return Usage{}, fmt.Errorf("read %sstat: %w", dir, err)
		}
		u.CPU += time.Duration(n) * time.Second / ticksPerSecond
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kB, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), " kB"))
			if err != nil {
				return Usage{}, fmt.Errorf("read %sstatus: %w", dir, err)
			}
			u.Peak = kB << 10
		}
	}
	return u, nil
}

// accountConfig returns the configuration of clients in this process.
func (r *Rig) accountConfig() (*rest.Config, error) { return r.configOf(r.kubeconfig) }

func (r *Rig) configOf(kubeconfig string) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	c.Dial, c.QPS = controlplane.Dialer(r.namespace), -1
	return c, nil
}

// SpeakerConfig returns the configuration of a client in this process that acts as the speaker on a Node, with the
// permissions of deploy/. The Node must exist; with an empty name the token names no Node.
func (r *Rig) SpeakerConfig(ctx context.Context, node string) (*rest.Config, error) {
	kubeconfig, err := r.cp.ServiceAccountKubeconfigOn(ctx, systemNamespace, "ironlb-speaker", node)
	if err != nil {
		return nil, err
	}
	return r.configOf(kubeconfig)
}
