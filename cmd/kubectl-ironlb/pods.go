package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// podClient reads logs of Pods and runs commands in them, in one namespace.
type podClient interface {
	Logs(ctx context.Context, pod string, o *corev1.PodLogOptions) ([]byte, error)
	// Exec returns the standard output of a command, also after an error of the command.
	Exec(ctx context.Context, pod, container string, argv ...string) ([]byte, error)
}

// restPods is the podClient of an API server.
type restPods struct {
	config    *rest.Config
	client    *rest.RESTClient
	namespace string
}

func connectPods(flags *genericclioptions.ConfigFlags, namespace string) (podClient, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config = rest.CopyConfig(config)
	config.QPS, config.APIPath, config.GroupVersion = -1, "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = clientscheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("preparing the client: %w", err)
	}
	return &restPods{config, client, namespace}, nil
}

// Logs returns the end of a log, in whole lines. PodLogOptions.LimitBytes would keep its beginning.
func (p *restPods) Logs(ctx context.Context, pod string, o *corev1.PodLogOptions) ([]byte, error) {
	stream, err := p.client.Get().Namespace(p.namespace).Resource("pods").Name(pod).SubResource("log").
		VersionedParams(o, clientscheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var end tail
	_, err = io.Copy(&end, stream)
	return end.lines(), err
}

// tail keeps the last logOctets that are written to it.
type tail struct {
	data []byte
	cut  bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if len(t.data) > 2*logOctets {
		t.drop()
	}
	return len(p), nil
}

func (t *tail) drop() {
	t.data = append(t.data[:0], t.data[len(t.data)-logOctets:]...)
	t.cut = true
}

func (t *tail) lines() []byte {
	if len(t.data) > logOctets {
		t.drop()
	}
	if _, rest, more := bytes.Cut(t.data, []byte("\n")); t.cut && more {
		return rest
	}
	return t.data
}

func (p *restPods) Exec(ctx context.Context, pod, container string, argv ...string) ([]byte, error) {
	url := p.client.Post().Namespace(p.namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: argv, Stdout: true, Stderr: true}, clientscheme.ParameterCodec).URL()
	spdy, spdyErr := remotecommand.NewSPDYExecutor(p.config, "POST", url)
	websocket, err := remotecommand.NewWebSocketExecutor(p.config, "GET", url.String())
	if err = errors.Join(spdyErr, err); err != nil {
		return nil, err
	}
	executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool { // as kubectl does, for proxies without websockets
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, err
	}
	out, stderr := &capped{most: mostOfExec}, &capped{most: 64 << 10}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: stderr})
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.Bytes(), err
}

// mostOfExec is the size of an answer of a node in octets: what a compromised one can make the caller keep.
const mostOfExec = 256 << 20

// capped is a buffer with a limit. A stream that was given up may still write to it.
type capped struct {
	most int

	mu   sync.Mutex
	data []byte
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.data)+len(p) > c.most {
		return 0, fmt.Errorf("the answer has more than %d bytes", c.most)
	}
	c.data = append(c.data, p...)
	return len(p), nil
}

// Bytes returns what has been written so far.
func (c *capped) Bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.data)
}
