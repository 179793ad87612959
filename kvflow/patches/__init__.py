"""Where kvflow touches SGLang: the only package that imports it.

Everything here attaches to SGLang or stands in for a part of it, hands plain values to the packages below (`engine`,
`control`, `policy`) and carries out what they decide on SGLang's trees, pools and queues. It takes no decisions of its
own, and none of the packages below may know it.
"""
