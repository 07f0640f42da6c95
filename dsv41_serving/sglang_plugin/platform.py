import os, sys, threading
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

def activate():
    return "dsv41_serving.sglang_plugin.platform:EmbeddedPlatform"

def tasks(label):
    names=[open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')]
    print("TASKS", label, os.getpid(), len(names), names, [t.name for t in threading.enumerate()], flush=True)

def nixl_patch():
    import nixl._api as A
    if getattr(A,'_p',None): return
    A._p=1
    f = A.nixl_agent.__init__
    def init(self, *a, **k):
        f(self, *a, **k)
        self.nixl_mems["VRAM"] = self.nixl_mems["DRAM"]
    A.nixl_agent.__init__ = init
    B=A.nixlBind
    g=B.nixlAgent
    def agent(name, cfg):
        cfg.pthrDelay=int(os.environ.get("PTHR","100000"))
        print("PTHR", cfg.pthrDelay, flush=True)
        return g(name,cfg)
    B.nixlAgent=agent

class EmbeddedPlatform(CpuDeviceMixin, SRTPlatform):
    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()
    def get_default_attention_backend(self): return "torch_native"
    def get_dispatch_key_name(self): return "native"
    def apply_server_args_defaults(self, server_args):
        import sglang.srt.entrypoints.engine as E
        tasks("defaults")
        if os.environ.get("FORK","1")=="1" and not hasattr(E,'_p'):
            E._p=1
            f=E._set_envs_and_config
            def g(*a,**k):
                f(*a,**k)
                import multiprocessing as mp
                mp.set_start_method("fork",force=True)
                tasks("forking")
                os.register_at_fork(before=lambda: tasks("fork"))
            E._set_envs_and_config=g
    def init_backend(self):
        print("INIT_BACKEND", os.getpid(), sys.argv[:3], flush=True)
        nixl_patch()
