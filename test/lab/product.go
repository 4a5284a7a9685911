package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Namespace and accounts of the product, as in deploy/.
const (
	SystemNamespace = "ironlb-system"
	ccmAccount      = "ironlb-ccm"
	speakerAccount  = "ironlb-speaker"
)

const stopGrace = 20 * time.Second // programs in an emulated guest are slow

// AccountKubeconfig writes a file with credentials of a ServiceAccount, for programs on Management and the nodes.
func (c *Cluster) AccountKubeconfig(ctx context.Context, namespace, name string) (file string, err error) {
	return c.cp.ServiceAccountKubeconfig(ctx, namespace, name)
}

// StartCCM starts ironlb-ccm on Management as its ServiceAccount. It may be started several times: the replicas elect a
// leader.
func (c *Cluster) StartCCM(ctx context.Context, flags ...string) (*process.Process, error) {
	kubeconfig, err := c.cp.ServiceAccountKubeconfig(ctx, SystemNamespace, ccmAccount)
	if err != nil {
		return nil, err
	}
	// In a Pod all three default to the Pod's own credentials.
	argv, err := c.contained(ccmAccount, append([]string{c.build.Path("ironlb-ccm"), "--kubeconfig", kubeconfig,
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig}, flags...)...)
	if err != nil {
		return nil, err
	}
	p, err := c.Management.Start(ctx, "ironlb-ccm", host.Cmd{Argv: argv})
	if err != nil {
		return nil, err
	}
	c.watch(p)
	return p, nil
}

// StartSpeaker starts ironlb-speaker on the node as its ServiceAccount; with Config.Contained it runs "prepare" first.
func (n *Node) StartSpeaker(ctx context.Context, flags ...string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.speaker != nil && n.speaker.Running() {
		return fmt.Errorf("start the speaker on %s: it runs already", n.Name)
	}
	argv, err := n.SpeakerArgv(ctx, flags...)
	if err != nil {
		return err
	}
	if err := n.prepare(ctx, flags...); err != nil {
		return err
	}
	if n.c.cfg.BGP && (n.bgp == nil || !n.bgp.Running()) {
		if err := n.startBGP(ctx); err != nil {
			return err
		}
	}
	p, err := n.Start(ctx, "ironlb-speaker", host.Cmd{Argv: argv})
	if err != nil {
		return err
	}
	n.c.watch(p)
	n.speaker = p
	return nil
}

// SpeakerArgv returns the command that runs ironlb-speaker on the node as its ServiceAccount.
func (n *Node) SpeakerArgv(ctx context.Context, flags ...string) ([]string, error) {
	kubeconfig, err := n.c.cp.ServiceAccountKubeconfigOn(ctx, SystemNamespace, speakerAccount, n.Name)
	if err != nil {
		return nil, err
	}
	keys, err := n.c.speakerKeys()
	if err != nil {
		return nil, err
	}
	if n.emulated() {
		if flags, err = n.c.patient(flags); err != nil {
			return nil, err
		}
	}
	argv := []string{n.c.build.Path("ironlb-speaker"), "--node-name", n.Name, "--kubeconfig", kubeconfig, "--key-file", keys}
	if n.c.cfg.BGP {
		argv = append(argv, "--bgp-socket", n.BGPSocket())
	}
	return n.c.contained("ironlb-speaker", append(argv, flags...)...)
}

// prepare runs "prepare", as the init container of the speaker's Pod does.
func (n *Node) prepare(ctx context.Context, flags ...string) error {
	if !n.c.cfg.Contained {
		return nil
	}
	argv := []string{n.c.build.Path("ironlb-speaker"), "prepare"}
	if i := slices.Index(flags, "--config"); i >= 0 {
		argv = append(argv, flags[i:i+2]...)
	}
	argv, err := n.c.contained("prepare", argv...)
	if err != nil {
		return err
	}
	if _, err := n.Exec(ctx, argv...); err != nil {
		return fmt.Errorf("prepare %s: %w", n.Name, err)
	}
	return nil
}

// contained returns the command that runs argv with the container's privileges from the manifest.
func (c *Cluster) contained(container string, argv ...string) ([]string, error) {
	p, err := manifest.Read(filepath.Join(c.Root, "deploy"), container)
	if err != nil {
		return nil, err
	}
	if c.cfg.Privileges != nil {
		c.cfg.Privileges(&p)
	}
	if c.cfg.Contained {
		return p.Contained([]string{c.Dir}, argv...), nil
	}
	return p.Argv(argv...), nil
}

// patient sets the profile for starved hosts, unless the speaker's configuration names a profile. In an emulated guest
// a speaker stalls for longer than its usual profile allows. Each speaker has its own file: another speaker may be
// reading the previous one.
func (c *Cluster) patient(flags []string) (_ []string, err error) {
	flags = slices.Clone(flags)
	i := slices.Index(flags, "--config") + 1
	var text []byte
	if i == 0 {
		flags = append(flags, "--config", "")
		i = len(flags) - 1
	} else if text, err = os.ReadFile(flags[i]); err != nil {
		return nil, fmt.Errorf("read a speaker's configuration: %w", err)
	} else if bytes.Contains(text, []byte("failover:")) {
		return flags, nil
	}
	file, err := os.CreateTemp(c.Dir, "speaker-*.yaml")
	if err != nil {
		return nil, fmt.Errorf("write a speaker's configuration: %w", err)
	}
	flags[i] = file.Name()
	_, err = fmt.Fprintf(file, "%s\nfailover: {profile: slow}\n", text)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("write a speaker's configuration: %w", err)
	}
	return flags, nil
}

// speakerKeys returns the file of the speakers' shared key.
func (c *Cluster) speakerKeys() (string, error) {
	file := filepath.Join(c.Dir, "speaker-keys")
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.WriteFile(file, []byte(rand.Text()+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("make the key that the speakers share: %w", err)
	}
	return file, nil
}

// StartSpeakers starts a speaker on every node.
func (c *Cluster) StartSpeakers(ctx context.Context, flags ...string) error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.StartSpeaker(ctx, flags...))
	}
	return errors.Join(errs...)
}

// Speaker returns the node's speaker, for Pause, Resume or Kill; nil if none was started.
func (n *Node) Speaker() *process.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.speaker
}

// StopSpeaker ends the node's speaker with SIGTERM and waits for its end.
func (n *Node) StopSpeaker() error {
	if p := n.Speaker(); p != nil {
		return p.Stop(stopGrace)
	}
	return nil
}

// ReplaceSpeaker ends the node's speaker as a kubelet does for a replaced Pod, and waits for its end. Like the preStop
// hook it waits until the speaker has received SIGUSR1: the kernel does not keep the order of two pending signals.
func (n *Node) ReplaceSpeaker() error {
	p := n.Speaker()
	if p == nil {
		return nil
	}
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	err := n.c.Eventually(context.Background(), 10*time.Second, "the speaker to take SIGUSR1 in", func(context.Context) error {
		log, err := os.ReadFile(p.Log)
		if err == nil && !bytes.Contains(log, []byte("about to be restarted")) {
			err = errors.New("its log does not report that it is about to be restarted")
		}
		return err
	})
	return errors.Join(err, n.StopSpeaker())
}

// SpeakerReady waits until the node's speaker reports ready.
func (n *Node) SpeakerReady(ctx context.Context) error {
	return n.c.Eventually(ctx, n.c.limit(time.Minute), "the speaker on "+n.Name+" is ready", func(ctx context.Context) error {
		_, err := n.Exec(ctx, "curl", "-fsS", "--max-time", "5", "http://127.0.0.1:7950/readyz")
		return err
	})
}

// KillSpeaker ends the node's speaker with SIGKILL.
func (n *Node) KillSpeaker() error {
	if p := n.Speaker(); p != nil {
		return p.Kill()
	}
	return nil
}
